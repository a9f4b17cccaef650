"""Which run is worth most: the written order, then what undecided claims lack."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sinkscope.errors import InputError
from sinkscope.experiments import QUESTIONS, SHIPPED, Findings, Observed, above, gap, known, level, pooled
from sinkscope.experiments.findings import labels_read
from sinkscope.experiments.identities import identities
from sinkscope.experiments.jobs import LabTraining
from sinkscope.experiments.queue.order import ORDER, Wanted
from sinkscope.experiments.queue.plan import plan
from tests.experiments.conftest import claimed


def run(label: str, seed: int, value: float = 0.0) -> Observed:
    metrics = {"sink_0": value}
    return Observed(f"{label}-{seed}", "finished", seed, metrics, seconds=24.0, layout=LabTraining.layout)


def planned(question, runs, order=()):
    found = Findings(question.name, "nano", 3, runs)
    return plan(pooled({question.name: found}, "nano", {question.name: question}), {question.name: question}, order)


def test_the_committed_order_names_what_there_is():
    for wanted in ORDER:
        labels = [variation.label for variation in QUESTIONS[wanted.question].variations]
        assert set(wanted.labels) <= set(labels), wanted
        assert "nano" not in QUESTIONS[wanted.question].not_at


def test_no_run_is_planned_twice_and_none_that_is_known():
    records = known([SHIPPED], "nano")
    found = plan(records)
    keys = [each.key for each in found]
    assert len(keys) == len(set(keys)) > 100
    assert not set(keys) & records.runs.keys()
    assert all(each.seconds is not None for each in found)
    listed = [each for each in found if each.why in {wanted.why for wanted in ORDER}]
    assert found[: len(listed)] == listed


def test_the_run_that_more_claims_lack_comes_first(small):
    question = small()
    runs = {"one": {}, "two": {seed: run("two", seed) for seed in range(3)}}
    asked = replace(
        question,
        assertions=(
            claimed(3, 0.0, gap("sink_0", "one", "two")),
            claimed(3, 0.0, level("sink_0", "one")),
        ),
    )
    assert [(each.label, each.seed, each.claims) for each in planned(asked, runs)] == [
        ("one", seed, 2) for seed in range(3)
    ]
    first = planned(asked, runs, (Wanted("small", ("two",), (7,), "wanted"),))[0]
    assert (first.called, first.why) == ("small: two, seed 7", "wanted")


def test_what_one_claim_lacks_comes_behind_what_two_lack(small):
    """Also where it has the lower seed."""
    runs = {"one": {seed: run("one", seed) for seed in range(5)}, "two": {seed: run("two", seed) for seed in (1, 2, 3)}}
    for seed, value in enumerate((5.0, -5.0, 1.0), 1):
        runs["two"][seed] = run("two", seed, value)
    asked = replace(
        small(),
        assertions=(
            claimed(3, 0.0, level("sink_0", "two")),
            above(0.0, gap("sink_0", "one", "two"), "c", "s", "a test", 5),
            above(0.0, level("sink_0", "one"), "d", "s", "a test", 5),
        ),
    )
    found = [(each.label, each.seed, each.claims) for each in planned(asked, runs)]
    assert found == [("one", 5, 2), ("one", 6, 2), ("one", 7, 2), ("two", 0, 1), *(("two", n, 1) for n in (5, 6, 7))]


def test_an_undecided_claim_with_three_seeds_lacks_the_next(small):
    question = replace(small(), assertions=(claimed(3, 0.0, level("sink_0", "one")),))
    undecided = {"one": {seed: run("one", seed, value) for seed, value in enumerate((5.0, -5.0, 1.0))}}
    assert [(each.label, each.seed) for each in planned(question, undecided)] == [("one", 3)]
    decided = {"one": {seed: run("one", seed, 50.0 + seed) for seed in range(3)}}
    assert planned(question, decided) == []


def test_estimates_are_those_of_other_seeds_or_of_the_steps(small):
    question = small()
    found = planned(question, {"one": {0: run("one", 0)}})
    assert {each.seconds for each in found if each.label == "one"} == {24.0}


def test_which_runs_a_claim_reads_is_seen_without_runs():
    for question in QUESTIONS.values():
        labels = [variation.label for variation in question.variations]
        for assertion in question.assertions:
            assert set(labels_read(question, assertion)) <= set(labels)
            assert labels_read(question, assertion), assertion.claim.name


def test_an_order_that_names_nothing_is_bad_input(small):
    with pytest.raises(InputError, match="did you mean 'small'"):
        planned(small(), {}, (Wanted("smal", ("one",), (0,), ""),))
    with pytest.raises(InputError, match="unknown variation of experiment 'small' 'three'"):
        planned(small(), {}, (Wanted("small", ("three",), (0,), ""),))


def test_at_scales_where_nothing_is_known_a_plan_has_no_estimates():
    assert {each.seconds for each in plan(known([], "mini"))} == {None}
    assert identities(QUESTIONS["prefix"], "nano") == {}


def fresh(question, effect, **more):
    return replace(question, assertions=(above(0.0, effect, "c", "s", "a test", 3),), **more)


def test_a_claim_that_does_not_count_seen_seeds_lacks_the_next_three(small):
    question = fresh(small(), gap("sink_0", "one", "two"))
    runs = {"one": {seed: run("one", seed) for seed in (0, 1, 2, 4)}, "two": {}}
    wanted = sorted((each.label, each.seed) for each in planned(question, runs))
    assert wanted == [("one", 3), ("one", 5), ("two", 3), ("two", 4), ("two", 5)]


def test_an_effect_within_a_seed_lacks_runs_that_share_one(small):
    """The control has seeds 0 to 2 and 5: the treatment's first three would pair with none of them."""
    question = replace(small(), assertions=(claimed(3, 0.0, lambda runs: runs["one"]["m"] - runs["two"]["m"]),))
    runs = {"one": {seed: run("one", seed) for seed in (0, 1, 2)}, "two": {seed: run("two", seed) for seed in (2, 3)}}
    wanted = sorted((each.label, each.seed) for each in planned(question, runs))
    assert wanted == [("two", 0), ("two", 1)]


def test_claims_of_one_question_ask_for_the_same_new_seeds(small):
    rate = claimed(3, 0.0, level("sink_0", "two"))
    question = fresh(small(), level("sink_0", "two"))
    question = replace(question, assertions=(*question.assertions, rate))
    found = planned(question, {"one": {}, "two": {}})
    assert [(each.label, each.seed, each.claims) for each in found] == [("two", seed, 2) for seed in (3, 4, 5)]
    seen = {"one": {}, "two": {seed: run("two", seed, value=50.0 + seed) for seed in range(3)}}
    assert [(each.label, each.seed, each.claims) for each in planned(question, seen)] == [
        ("two", seed, 1) for seed in (3, 4, 5)
    ]
