"""The path from runs to grade, where the truth is known: how often it confirms what is not so."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from sinkscope.experiments import (
    Findings,
    Has,
    Observed,
    Question,
    Variation,
    above,
    above_ratio,
    gap,
    level,
    log_ratio,
    more_models,
    verdicts,
)
from sinkscope.report.terminal import show, table
from tools.grades import COLUMNS, KINDS, SIGMA, TRUTHS, Rates, count_grades, lognormal, rates, size_grades

WORDS = {"seen": 1, "not seen": -1, "open": 0}


def graded(values: dict[str, np.ndarray], *claims) -> list[int]:
    """The grades that a question's claims get from runs with these values of `m`."""
    runs = {
        label: {seed: Observed(f"{label}-{seed}", "finished", seed, {"m": float(x)}) for seed, x in enumerate(each)}
        for label, each in values.items()
    }
    variations = tuple(Variation(label, seeds=len(each)) for label, each in values.items())
    question = Question("q", "?", "t", variations, claims)
    return [WORDS[verdict.grade] for verdict in verdicts(question, Findings("q", "nano", 99, runs))]


@pytest.mark.slow
def test_the_script_grades_as_the_path_from_runs_to_grade_does():
    draw = np.random.default_rng(1)
    rows = np.concatenate([effect + KINDS["normal"](draw, (40, 6)) for effect in (-0.5, 1.0, 3.0)])
    claim = above(1.0, level("m", "a"), "c", "s", "t", symmetric=True)
    expected = size_grades(rows, 1.0)
    assert {*expected} == {-1, 0, 1}
    assert [graded({"a": row}, claim)[0] for row in rows] == list(expected)
    counted = more_models("a", "b", Has("m", 1.0), "c", "s", "t")
    counts = draw.integers(0, 7, (60, 2))
    counts[:2] = ((6, 0), (0, 6))
    wanted = count_grades(counts[:, 0], counts[:, 1], (6, 6))
    assert {*wanted} == {-1, 0, 1}
    made = [graded({"a": np.arange(6) < a, "b": np.arange(6) < b}, counted)[0] for a, b in counts]
    assert made == list(wanted)


@pytest.mark.slow
def test_normal_sizes_and_counts_err_in_at_most_one_percent():
    """And a long tail errs more, so that counts are primary and a size without `symmetric` asks for twelve models."""
    by = {(each.claim, each.n, each.truth): each for each in rates(40_000)}
    noise = 0.15  # three standard errors of 1 % in 40,000 draws
    for n in ((6,), (12,)):
        at_margin = by["size, normal", n, "at the margin"]
        assert max(at_margin.confirmed, at_margin.not_seen) <= 1 + noise
        assert by["size, normal", n, "at 0"].confirmed <= noise
    for (claim, _, truth), each in by.items():
        if claim == "count" and truth == ".5 and .5":
            assert max(each.confirmed, each.not_seen) <= 1 + noise
    tail = [by["size, exponential", (n,), "at the margin"].not_seen for n in (6, 12)]
    assert tail[0] > tail[1] > 1 + noise


@pytest.mark.slow
def test_more_models_decide_more():
    by = {(each.claim, each.n, each.truth): each for each in rates(5_000)}
    powers = [by["size, normal", (n,), "at two margins"].confirmed for n in (6, 12)]
    assert powers[1] > powers[0] + 20
    counts = [by["count", n, "1 and .1"].confirmed for n in ((6, 6), (12, 6), (12, 12))]
    assert counts == sorted(counts)
    assert counts[-1] > 95


SHARES = {"at the margin": (0.5, 0.5), "at 0": (0.1, 0.9), "at two margins": (1.0, 0.1)}  # of a and of b
CLAIMS = (
    above(1.0, gap("normal", "a", "b"), "difference, normal", "s", "t", symmetric=True),
    above(1.0, gap("lognormal", "a", "b"), "difference, lognormal", "s", "t", symmetric=True),
    above_ratio(np.exp(SIGMA), log_ratio("mass", "a", "b"), "ratio, lognormal", "s", "t"),
    above(1.0, level("lognormal", "a"), "one variation, lognormal", "s", "t", symmetric=True),
    more_models("a", "b", Has("rate", 3.0), "count", "s", "t"),
)


def simulated(models: tuple[int, int], truth: str, draws: int) -> list[Rates]:
    """How often each claim gets each grade, from runs: the effect of `a` over `b` is 0, 1 or 2 standard deviations."""
    draw = np.random.default_rng([*models, *truth.encode()])
    question = Question("q", "?", "t", tuple(Variation("ab"[k], seeds=n) for k, n in enumerate(models)), CLAIMS)
    grades: dict[str, Counter[str]] = {each.claim.name: Counter() for each in CLAIMS}
    for _ in range(draws):
        runs: dict[str, dict[int, Observed]] = {}
        for label, n, effect, share in zip("ab", models, (TRUTHS[truth], 0.0), SHARES[truth], strict=True):
            values = {
                "normal": effect + draw.normal(size=n),
                "lognormal": effect + lognormal(draw, (1, n))[0],
                "mass": np.exp(SIGMA * (effect + draw.normal(size=n))),
                "rate": 5.0 * (draw.random(n) < share),
            }
            runs[label] = {
                seed: Observed(label, "finished", seed, {name: float(each[seed]) for name, each in values.items()})
                for seed in range(n)
            }
        for verdict in verdicts(question, Findings("q", "nano", 99, runs)):
            grades[verdict.claim.name][verdict.grade] += 1
    percent = 100 / draws
    return [
        Rates(name, models, truth, percent * each["seen"], percent * each["not seen"]) for name, each in grades.items()
    ]


@pytest.mark.slow
@pytest.mark.parametrize("models", [(6, 6), pytest.param((12, 6), marks=pytest.mark.release)], ids=str)
def test_from_runs_to_grade_differences_ratios_and_counts_err_in_one_percent(models, capsys):
    """The whole path, with Welch's interval and logarithms; the table is printed."""
    made = [each for truth in TRUTHS for each in simulated(models, truth, 1500)]
    with capsys.disabled():
        show(table(COLUMNS, [each.row for each in made], numbers_from=3))
    noise = 0.8  # three standard errors of 1 % in 1,500 draws
    by = {(each.claim, each.truth): each for each in made}
    for name in ("difference, normal", "ratio, lognormal", "count"):
        at_margin, at_0, at_two = (by[name, truth] for truth in TRUTHS)
        assert max(at_margin.confirmed, at_margin.not_seen) <= 1 + noise, name
        assert at_0.confirmed == at_two.not_seen == 0, name
        assert at_two.confirmed > 15, name
    tail = by["one variation, lognormal", "at the margin"]
    assert tail.confirmed <= 1
    assert 2 < tail.not_seen < 7, "why counts are primary, and sizes are asked of logarithms"
