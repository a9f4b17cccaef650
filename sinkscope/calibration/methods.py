"""Methods of calibration by name: one table for the command line, its help and the tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from sinkscope.calibration.act import ACT
from sinkscope.calibration.choosing import Option
from sinkscope.calibration.editing import Head
from sinkscope.calibration.temperature import Temperature
from sinkscope.calibration.zero_tuning import FACTORS, factor_options
from sinkscope.interventions import Intervention

Heads = tuple[Head, ...] | None
Options = Callable[[tuple[float, ...], int], list[Option]]

TEMPERATURES = (0.8, 0.9, 1.1, 1.25)
BETAS = (0.4,)


@dataclass(frozen=True)
class Method:
    """A family of calibrations with one number to choose. `number`: its name; `defaults`: those that are tried."""

    about: str
    number: str
    defaults: tuple[float, ...]
    options: Options


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


METHODS: dict[str, Method] = {
    "zero-tuning": Method("a factor on the weight of the token at --position", "gamma", FACTORS, factor_options),
    "act": Method("less weight on sinks beyond the first, as published", "beta", BETAS, _options("beta", _act)),
    "act-guarded": Method(
        "as act, but not position 0 nor what few queries see", "beta", BETAS, _options("beta", _guarded_act)
    ),
    "temperature": Method("a temperature on the logits", "tau", TEMPERATURES, _options("tau", _temperature)),
}
