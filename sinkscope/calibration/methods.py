"""Methods of calibration by name: one table for the command line, its help and the tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import nn

from sinkscope.calibration.act import ACT
from sinkscope.calibration.choosing import Option
from sinkscope.calibration.editing import Head
from sinkscope.calibration.temperature import Temperature
from sinkscope.calibration.visual import VisualRedistribution
from sinkscope.calibration.zero_tuning import FACTORS, factor_options
from sinkscope.errors import InputError
from sinkscope.interventions import Intervention

Heads = tuple[Head, ...] | None
Options = Callable[[tuple[float, ...], int], list[Option]]
OfImages = Callable[[nn.Module, Mapping[str, Any], tuple[float, ...]], list[Option]]

TEMPERATURES = (0.8, 0.9, 1.1, 1.25)
BETAS = (0.4,)
SHARES = (0.4, 0.6, 0.8)  # that visual sinks keep; 0.6 as published


@dataclass(frozen=True)
class Method:
    """A family of calibrations with one number to choose. `number`: its name; `defaults`: those that are tried.

    `options(values, position)`: what to choose from; of what is found in images, `of_images(model, inputs, values)`.
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


def _act(beta: float, heads: Heads) -> Intervention:
    return ACT(beta, heads=heads)


def _guarded_act(beta: float, heads: Heads) -> Intervention:
    return ACT(beta, guarded=True, heads=heads)


def _temperature(tau: float, heads: Heads) -> Intervention:
    return Temperature(tau, heads)


def _visual(model: nn.Module, inputs: Mapping[str, Any], values: tuple[float, ...]) -> list[Option]:
    """VAR with dimensions of this model: it finds its heads itself, query by query, so none are chosen."""
    found = VisualRedistribution.of(model, inputs)

    def option(p: float) -> Option:
        changed = replace(found, p=p)
        return Option(f"p={p:g}", lambda heads: changed, whole=True)

    return [option(p) for p in dict.fromkeys(values)]


def _without_images(values: tuple[float, ...], position: int) -> list[Option]:
    raise InputError("var moves weight between tokens of an image: it is found in a model's inputs (--images DIR)")


METHODS: dict[str, Method] = {
    "zero-tuning": Method("a factor on the weight of the token at --position", "gamma", FACTORS, factor_options),
    "act": Method("less weight on sinks beyond the first, as published", "beta", BETAS, _options("beta", _act)),
    "act-guarded": Method(
        "as act, but not position 0 nor what few queries see", "beta", BETAS, _options("beta", _guarded_act)
    ),
    "var": Method(
        "of models that read --images: weight of visual sinks goes to the image's other tokens",
        "p",
        SHARES,
        _without_images,
        _visual,
    ),
    "temperature": Method("a temperature on the logits", "tau", TEMPERATURES, _options("tau", _temperature)),
}
