"""Effects of single questions: what they presuppose, and refuse without it."""

from __future__ import annotations

import math

import pytest
from sinkscope_replication.questions.variations import OTHERS

from sinkscope.experiments import Findings, Observed, verdicts
from sinkscope_replication.questions import QUESTIONS


def claim(question: str, name: str):
    return next(one for one in QUESTIONS[question].assertions if one.claim.name == name)


def positions(rate: float = 2.0, **masses: float) -> Observed:
    """A run of which every position's sink mass is known: 0.1, or what is said here, m0 for position 0.

    `rate`: the sink rate at each position.
    """
    read = {at: masses.get(f"m{at}", 0.1) for at in range(17)}
    mass = {f"sink_mass_{at}" if at else "sink_mass": mass for at, mass in read.items()}
    return Observed("r", "finished", 3, mass | {f"sink_{at}": rate for at in read})


def test_a_sink_that_stays_at_the_first_token_is_not_one_that_a_prefix_moved():
    moved = claim("prefix-longer", "behind the first token, by mass").effect
    assert moved({"causal": positions(m0=0.6), "prefix of 5": positions(m0=0.6)}) == 0.0
    assert moved({"causal": positions(m0=0.6), "prefix of 5": positions(m3=0.9)}) == pytest.approx(0.8)


def test_where_there_is_no_sink_at_any_position_nothing_is_asked_of_its_place():
    """The largest of all positions counts: that of the highest rate is any where no head has one."""
    ahead = claim("prefix-longer", "not behind it, by mass").effect
    assert ahead({"prefix of 5": positions(m4=0.5)}) == pytest.approx(0.4)
    assert ahead({"prefix of 5": positions(m16=0.5)}) == pytest.approx(-0.4)
    assert math.isnan(ahead({"prefix of 5": positions(rate=0.5, m4=0.9)}))
    assert ahead.refuses({"prefix of 5": positions(rate=0.5, m4=0.9)})
    second = claim("random-tokens-longer", "two of them, by mass").effect
    assert second({"two random": positions(m1=0.6)}) == pytest.approx(0.5)
    assert math.isnan(second({"two random": positions()}))


def test_a_prefix_moves_no_sink_where_no_head_has_one():
    moved = claim("prefix-longer", "behind the first token, by mass").effect
    runs = {"causal": positions(m0=0.6), "prefix of 5": positions(rate=0.5, m3=0.9)}
    assert math.isnan(moved(runs))
    assert moved.refuses(runs)


def test_an_embedding_counts_as_replaced_by_each_of_the_others():
    gone = claim("moved-positions", "with a BOS: replaced, by mass").effect
    left = {f"sink_mass/replaced={other}": 0.5 for other in OTHERS}
    run = {"sink_mass/repeated": 3.0, **left}
    asked = "learned positions, fixed BOS"
    assert gone({asked: Observed("r", "finished", 3, run)}) == pytest.approx(2.5)
    assert gone(
        {asked: Observed("r", "finished", 3, run | {f"sink_mass/replaced={OTHERS[-1]}": 2.8})}
    ) == pytest.approx(0.2)
    assert math.isnan(gone({asked: Observed("r", "finished", 3, run | {"sink_mass/repeated": 0.9})}))


def test_whether_a_window_prevents_a_sink_is_asked_where_there_is_one():
    none = claim("window", "none, at a threshold of a half").effect
    metric = "sink_0/tokens=32/epsilon=0.5"
    short = {"window of 32": Observed("r", "finished", 3, {metric: 0.25})}
    assert none(short | {"causal": Observed("r", "finished", 3, {metric: 4.0})}) == 0.25
    assert math.isnan(none(short | {"causal": Observed("r", "finished", 3, {metric: 2.0})}))


def test_a_random_second_token_is_to_leave_half():
    left = claim("random-tokens-longer", "a random second token, by mass").effect
    assert left({"text": positions(m0=0.6), "second random": positions(m0=0.4)}) == pytest.approx(0.1)
    assert left({"text": positions(m0=0.6), "second random": positions(m0=0.2)}) == pytest.approx(-0.1)


def test_what_is_there_before_training_does_not_come_in_training():
    added = claim("positions", "relative_paper: emerges, by mass").effect
    metrics = {"sink_mass": 8.0, "sink_mass/start": 0.2}
    assert added({"relative_paper": Observed("r", "finished", 3, metrics)}) == pytest.approx(7.8)
    assert math.isnan(added({"relative_paper": Observed("r", "finished", 3, metrics | {"sink_mass/start": 23.0})}))


def test_overfitting_and_a_missing_sink_are_not_told_apart_where_both_are_there():
    kept = claim("data-amount", "and leaves the sink, by mass").effect
    run = {"all": Observed("r", "finished", 3, {"sink_mass": 5.0})}
    assert kept(run | {"1/100": Observed("r", "finished", 3, {"sink_mass": 4.5})}) == pytest.approx(-0.5)
    assert math.isnan(kept(run | {"1/100": Observed("r", "finished", 3, {"sink_mass": 0.5})}))


def test_what_is_not_there_is_not_asked_whether_it_moves():
    """Seeds without the sink have no value, and the verdict says so: their differences of 0 would refute the claim."""
    masses = {"sink_mass/repeated": (4.0, 4.2, 4.1, 0.0), "sink_mass/replaced=4": (0.1, 0.3, 0.2, 0.0)}
    by_seed = [dict(zip(masses, each, strict=True)) for each in zip(*masses.values(), strict=True)]
    runs = {seed: Observed("r", "finished", seed, values) for seed, values in enumerate(by_seed, start=3)}
    question = QUESTIONS["moved-positions"]
    asked = next(one for one in question.assertions if one.claim.name == "replaced, by mass")
    assert asked.effect({"learned positions": runs[3]}) == pytest.approx(3.9)
    assert math.isnan(asked.effect({"learned positions": runs[6]}))
    for seeds, outcome in (((3, 4, 5), "supported"), ((6,), "inconclusive")):
        found = Findings(
            "moved-positions", "nano", 7, {"learned positions": {seed: runs[seed] for seed in seeds}}, {}, {}
        )
        made = {verdict.claim.name: verdict for verdict in verdicts(question, found)}["replaced, by mass"]
        assert made.outcome == outcome
    assert made.reason.endswith("seed 6 refused: no sink on the repeated token to begin with")
    unread = {"learned positions": {3: Observed("r", "finished", 3, {"sink_mass/replaced=4": 0.0})}}
    made = {one.claim.name: one for one in verdicts(question, Findings("moved-positions", "nano", 4, unread, {}, {}))}
    assert made["replaced, by mass"].outcome == "inconclusive"
    assert "refused" not in made["replaced, by mass"].reason
