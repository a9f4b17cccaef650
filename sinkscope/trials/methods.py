"""Methods of calibration by name: one table for the command line, its help and the tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import nn

from sinkscope.errors import InputError
from sinkscope.interventions import ACT, Intervention, Reweigh, Temperature, VisualRedistribution
from sinkscope.interventions.reweigh import Head, check_factor
from sinkscope.trials.choosing import Chosen, Option, choose_heads

FACTORS = (0.5, 0.8, 1.25, 2.0)


def zero_tuning(
    model: nn.Module, inputs: Any, factors: Sequence[float] = FACTORS, *, position: int = 0, **options: Any
) -> Chosen:
    """ZeroTuning: the factor γ and the heads in which A'[t, 0] = γ A[t, 0] / Z predicts best.

    What the choice is worth on other texts is measured by `calibration_trial`. Source: Han et al. 2025, who choose by
    validation accuracy on tasks or by entropy, find γ > 1 best for classification and γ < 1 for question answering, and
    scale either the heads that gain from more or those that gain from less weight; here both signs are tried for each
    head.

    Args:
        model: Any causal model whose attention can be changed.
        inputs: The texts to choose on.
        factors: The values of γ to choose from.
        position: The position of the sink.
        options: Passed to `choose_heads`; `objective="entropy"` needs no targets.
    """
    return choose_heads(model, inputs, factor_options(factors, position), **options)


def factor_options(factors: Sequence[float], position: int = 0) -> list[Option]:
    """One option per factor. Raises `InputError` for no factors, and for invalid ones and 1."""
    if not factors:
        raise InputError("factors: give at least one")
    for factor in factors:
        check_factor("factor", factor)
        if factor == 1:
            raise InputError("factor = 1 changes nothing: leave it out")
    return [Option(f"gamma={factor:g}", partial(Reweigh, factor, (position,))) for factor in dict.fromkeys(factors)]


Heads = tuple[Head, ...] | None
Options = Callable[[tuple[float, ...], int], list[Option]]
OfImages = Callable[[nn.Module, Mapping[str, Any], tuple[float, ...]], list[Option]]

TEMPERATURES = (0.8, 0.9, 1.1, 1.25)
BETAS = (0.4,)
SHARES = (0.4, 0.6, 0.8)  # of their weight that visual sinks keep; 0.6 as published


@dataclass(frozen=True)
class CalibrationMethod:
    """A family of calibrations with one number to choose. `number`: its name; `defaults`: the values to try.

    `options(values, position)`: what to choose from; for methods that read images, `of_images(model, inputs, values)`.
    """

    about: str
    number: str
    defaults: tuple[float, ...]
    options: Options
    of_images: OfImages | None = None


def _options(
    number: str, make: Callable[[float, Heads], Intervention]
) -> Callable[[tuple[float, ...], int], list[Option]]:
    def options(values: tuple[float, ...], position: int) -> list[Option]:
        return [Option(f"{number}={value:g}", partial(make, value)) for value in values]

    return options


def _visual(model: nn.Module, inputs: Mapping[str, Any], values: tuple[float, ...]) -> list[Option]:
    """VAR with this model's dimensions: it selects its heads itself, query by query, so none are chosen."""
    redistribution = VisualRedistribution.of(model, inputs)

    def option(p: float) -> Option:
        changed = replace(redistribution, p=p)
        return Option(f"p={p:g}", lambda heads: changed, whole=True)

    return [option(p) for p in dict.fromkeys(values)]


def _without_images(values: tuple[float, ...], position: int) -> list[Option]:
    raise InputError("var moves weight between the tokens of an image: give images")


CALIBRATIONS: dict[str, CalibrationMethod] = {
    "zero-tuning": CalibrationMethod(
        "a factor on the weight of the token at one position", "gamma", FACTORS, factor_options
    ),
    "act": CalibrationMethod(
        "less weight on sinks other than the first, as published",
        "beta",
        BETAS,
        _options("beta", lambda beta, heads: ACT(beta, heads=heads)),
    ),
    "act-guarded": CalibrationMethod(
        "as act, without position 0 and tokens that few queries see",
        "beta",
        BETAS,
        _options("beta", lambda beta, heads: ACT(beta, guarded=True, heads=heads)),
    ),
    "var": CalibrationMethod(
        "for models that read images: weight on visual sinks moves to the image's other tokens",
        "p",
        SHARES,
        _without_images,
        _visual,
    ),
    "temperature": CalibrationMethod("a temperature on the logits", "tau", TEMPERATURES, _options("tau", Temperature)),
}
