"""`python -m tools.grades`: how often grades err, where the truth is known.

Draws models whose effect lies at the margin, at 0 and at two margins (one margin is one standard deviation), and pairs
of variations with known shares. Grades them by the rules of `sinkscope.statistics.claims` and prints the percentage of
each grade. At the margin both "confirmed" and "not seen" are errors, and each should be at most 1 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy import stats

from sinkscope.report.terminal import show, table
from sinkscope.statistics.claims import LEVEL, Count, ModelCount

DRAWS = 20_000
SIGMA = 0.5  # of the lognormal distribution
COLUMNS = ("claim", "models", "truth", "confirmed", "not seen", "open")
Draw = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]


def normal(draw: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return draw.normal(size=shape)


def lognormal(draw: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Of mean 0 and standard deviation 1."""
    mean, variance = math.exp(SIGMA**2 / 2), (math.exp(SIGMA**2) - 1) * math.exp(SIGMA**2)
    return np.asarray((draw.lognormal(0.0, SIGMA, shape) - mean) / math.sqrt(variance))


def exponential(draw: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return np.asarray(draw.exponential(1.0, shape) - 1.0)


KINDS: dict[str, Draw] = {"normal": normal, f"lognormal, σ = {SIGMA:g}": lognormal, "exponential": exponential}
TRUTHS = {"at the margin": 1.0, "at 0": 0.0, "at two margins": 2.0}
SHARES = {".5 and .5": (0.5, 0.5), ".9 and .5": (0.9, 0.5), "1 and .1": (1.0, 0.1), ".1 and .9": (0.1, 0.9)}


@dataclass(frozen=True)
class Rates:
    """Percent of claims that are confirmed, and not seen; the rest is open."""

    claim: str
    n: tuple[int, ...]
    truth: str
    confirmed: float
    not_seen: float

    @property
    def row(self) -> tuple[str, ...]:
        numbers = (self.confirmed, self.not_seen, 100 - self.confirmed - self.not_seen)
        return self.claim, " and ".join(map(str, self.n)), self.truth, *(f"{number:.1f} %" for number in numbers)


def size_grades(values: np.ndarray, margin: float) -> np.ndarray:
    """1 where an effect above the margin is confirmed, −1 where it is not seen, 0 where it is open; a row per claim.

    As `Size(margin)` grades each row, for all rows at once.
    """
    n = values.shape[1]
    mean, error = values.mean(1), values.std(1, ddof=1) / math.sqrt(n)
    width = stats.t.ppf(1 - LEVEL, n - 1) * error
    return np.asarray((mean - width > margin).astype(int) - (mean + width < margin))


def count_grades(first: np.ndarray, second: np.ndarray, n: tuple[int, int]) -> np.ndarray:
    """The same for counts of two variations, as `Count()` grades them: every pair of counts is judged once."""
    rule = Count()
    grade = {"confirmed": 1, "not seen": -1, "open": 0}
    pairs = [[(ModelCount(a, n[0]), ModelCount(b, n[1])) for b in range(n[1] + 1)] for a in range(n[0] + 1)]
    judged = np.array([[grade[_decided(rule, pair)] for pair in row] for row in pairs])
    return np.asarray(judged[first, second])


def _decided(rule: Count, pair: tuple[ModelCount, ModelCount]) -> str:
    more, less = rule.p_values(pair)
    return "confirmed" if more <= LEVEL else "not seen" if less <= LEVEL else "open"


def rates(draws: int = DRAWS, seed: int = 0) -> Iterator[Rates]:
    """How often each grade is given, for sizes and counts of known truth."""
    draw = np.random.default_rng(seed)
    for kind, make in KINDS.items():
        for n in (6, 12):
            for truth, effect in TRUTHS.items():
                grades = size_grades(effect + make(draw, (draws, n)), 1.0)
                yield Rates(f"size, {kind}", (n,), truth, *_percent(grades))
    for models in ((6, 6), (12, 6), (12, 12)):
        for truth, shares in SHARES.items():
            counts = [draw.binomial(n, share, draws) for n, share in zip(models, shares, strict=True)]
            yield Rates("count", models, truth, *_percent(count_grades(counts[0], counts[1], models)))


def _percent(grades: np.ndarray) -> tuple[float, float]:
    return 100 * float((grades == 1).mean()), 100 * float((grades == -1).mean())


if __name__ == "__main__":
    show(table(COLUMNS, [each.row for each in rates()], numbers_from=3))
