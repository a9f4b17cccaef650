"""The path from runs to grade, where the truth is known: how often it confirms what is not so."""

from __future__ import annotations

import numpy as np
import pytest

from sinkscope.experiments import (
    Findings,
    Has,
    Observed,
    Question,
    Variation,
    above,
    level,
    more_models,
    verdicts,
)
from tools.grades import KINDS, count_grades, rates, size_grades

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
