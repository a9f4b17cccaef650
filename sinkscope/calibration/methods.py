"""Methods of calibration by name: one table for the command line, its help and the tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sinkscope.calibration.act import ACT
from sinkscope.calibration.choosing import Option
from sinkscope.calibration.temperature import Temperature
from sinkscope.calibration.zero_tuning import FACTORS, factor_options

TEMPERATURES = (0.8, 0.9, 1.1, 1.25)
BETAS = (0.4,)


@dataclass(frozen=True)
class Method:
    """A family of calibrations with one number to choose. `number`: its name; `defaults`: those that are tried."""

    about: str
    number: str
    defaults: tuple[float, ...]
    options: Callable[[tuple[float, ...], int], list[Option]]


def _acts(guarded: bool) -> Callable[[tuple[float, ...], int], list[Option]]:
    def options(betas: tuple[float, ...], position: int) -> list[Option]:
        return [Option(f"beta={beta:g}", lambda heads, beta=beta: ACT(beta, 0.1, guarded, heads)) for beta in betas]

    return options


def _temperatures(taus: tuple[float, ...], position: int) -> list[Option]:
    return [Option(f"tau={tau:g}", lambda heads, tau=tau: Temperature(tau, heads)) for tau in taus]


METHODS: dict[str, Method] = {
    "zero-tuning": Method("a factor on the weight of the token at --position", "gamma", FACTORS, factor_options),
    "act": Method("less weight on sinks beyond the first, as published", "beta", BETAS, _acts(False)),
    "act-guarded": Method("as act, but for position 0 and what few queries see", "beta", BETAS, _acts(True)),
    "temperature": Method("a temperature on the logits", "tau", TEMPERATURES, _temperatures),
}
