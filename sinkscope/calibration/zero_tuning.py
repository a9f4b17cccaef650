"""ZeroTuning: a factor on the weight of the first token, in the heads where it helps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from sinkscope.calibration.choosing import Chosen, Option, search
from sinkscope.calibration.reweigh import Reweigh, check_factor
from sinkscope.errors import InputError

FACTORS = (0.5, 0.8, 1.25, 2.0)


def zero_tuning(
    model: nn.Module, inputs: Any, factors: Sequence[float] = FACTORS, *, position: int = 0, **options: Any
) -> Chosen:
    """The factor γ and the heads in which A'[t, 0] = γ A[t, 0] / Z predicts best; `options` as of `search`.

    `objective="entropy"` needs no truth. What the choice is worth on other texts is a trial's question
    (`trials.calibration_trial`). Source: Han et al. 2025, who choose by validation accuracy on tasks or by entropy,
    find γ > 1 best for classification and below for question answering, and scale either the heads that gain from more
    or those that gain from less; here both signs are tried head by head.
    """
    return search(model, inputs, factor_options(factors, position), **options)


def factor_options(factors: Sequence[float], position: int = 0) -> list[Option]:
    """An option for each factor. Raises `InputError` for none, or one that is no factor or changes nothing."""
    if not factors:
        raise InputError("factors: give at least one")
    for factor in factors:
        check_factor("factor", factor)
        if factor == 1:
            raise InputError("factor = 1 changes nothing: leave it out")
    return [Option(f"gamma={factor:g}", _option(factor, position)) for factor in dict.fromkeys(factors)]


def _option(factor: float, position: int) -> Any:
    return lambda heads: Reweigh(factor, (position,), heads)
