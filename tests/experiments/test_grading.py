"""Grades from runs: which count, what is left out, and what registration changes."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from sinkscope.errors import InputError
from sinkscope.experiments import (
    Assertion,
    Findings,
    Has,
    Observed,
    Question,
    Registration,
    Variation,
    above,
    above_ratio,
    gap,
    labels_read,
    level,
    log_ratio,
    more_models,
    most_models,
    rising,
    standing_of,
    verdicts,
    within,
    without_sinks,
)
from sinkscope.experiments.effects import (
    SeedWise,
    gap_at_equal_loss,
    log_quotient,
    log_ratio_at_equal_loss,
    metric_gap,
    peak,
    range_of,
)
from sinkscope.statistics.claims import Claim, EachWithin

SINK = Has("m", 3.0)


def run(label: str, seed: int, value: float, status: str = "finished", loss: float = 3.0, **more: object) -> Observed:
    metrics = {"m": value, "loss": loss} if status == "finished" else {}
    return Observed(f"{label}-{seed}", status, seed, metrics, seconds=10.0, **more)


def asked(*assertions: Assertion, seeds=6, labels="ab", **more: object) -> Question:
    return Question("q", "?", "t", tuple(map(Variation, labels)), assertions, seeds=seeds, **more)


def more(first="a", second="b", has=SINK) -> Assertion:
    return more_models(first, second, has, "more", "more models have it", "t")


def size(effect, margin=1.0, name="size", **options) -> Assertion:
    return above(margin, effect, name, "it is larger", "t", symmetric=True, **options)


def runs_of(**values: dict[int, float] | list[float]) -> Findings:
    cells = {
        label: {
            seed: run(label, seed, value)
            for seed, value in dict(each if isinstance(each, dict) else enumerate(each)).items()
        }
        for label, each in values.items()
    }
    return Findings("q", "nano", 6, cells)


HIGH, LOW = [9.0, 9.5, 8.5, 9.2, 8.8, 9.9], [1.0, 1.5, 0.5, 1.2, 0.8, 1.9]


def test_a_claim_is_judged_once_all_of_its_runs_are_there():
    question = asked(more(), size(gap("m", "a", "b")))
    early = verdicts(question, runs_of(a=HIGH, b=LOW[:4]))
    assert [(each.grade, each.reason, each.p) for each in early] == [("open", "10 of 12 runs", None)] * 2
    assert early[0].found == "6 of 6 against 0 of 4 (below 53 %)"
    assert [each.grade for each in verdicts(question, runs_of(a=HIGH, b=LOW))] == ["seen", "seen"]


def test_runs_that_start_from_one_model_decide_nothing():
    question = asked(more(), size(gap("m", "a", "b")), one_model=True)
    graded = verdicts(question, runs_of(a=HIGH, b=LOW))
    assert [(each.grade, each.p) for each in graded] == [("open", None)] * 2
    assert all(each.reason.startswith("all runs start from one trained model") for each in graded)
    assert graded[0].found == "6 of 6 against 0 of 6 (below 39 %)"


def test_a_question_whose_runs_start_from_one_model_says_so():
    start = {"start_from": "nano", "data.tokenizer": "nano"}
    variations = (Variation("from scratch"), Variation("tuned", start))
    question = Question("q", "?", "t", variations, (more("tuned", "from scratch"),), seeds=2)
    with pytest.raises(InputError, match="all models of 'tuned' start from nano, so they count as one"):
        question.recipes("nano")
    assert len(question.recipes("nano", [0])) == 2
    assert len(replace(question, one_model=True).recipes("nano")) == 4


def test_runs_of_other_seeds_do_not_count():
    """Else seeds are added until it holds."""
    question = asked(more(), seeds=range(6))
    extra = {**dict(enumerate(LOW)), **dict.fromkeys(range(6, 40), 9.0)}
    (verdict,) = verdicts(question, runs_of(a=HIGH, b=extra))
    assert verdict.n == (6, 6)
    assert verdict.k == (6, 0)


def test_a_variation_may_have_seeds_of_its_own():
    question = Question("q", "?", "t", (Variation("a", seeds=range(12)), Variation("b")), (more(),), seeds=(3, 5, 7, 9))
    control = {seed: 9.0 + seed / 10 for seed in range(12)}
    (verdict,) = verdicts(question, runs_of(a=control, b=dict.fromkeys((3, 5, 7, 9), 1.0)))
    assert (verdict.found, verdict.grade) == ("12 of 12 against 0 of 4 (below 53 %)", "seen")


def test_a_size_uses_every_run_of_a_variation_and_names_shared_seeds():
    variations = (Variation("a", seeds=12), Variation("b", seeds=6))
    question = Question("q", "?", "t", variations, (size(gap("m", "a", "b")),))
    (verdict,) = verdicts(question, runs_of(a=HIGH + HIGH, b=LOW))
    assert verdict.n == (12, 6)
    assert [each.case for each in verdict.evidence] == [f"seed {seed}" for seed in range(6)]
    assert verdict.value == pytest.approx(sum(HIGH) / 6 - sum(LOW) / 6)


@pytest.mark.parametrize("effect", [gap("m", "a", "b"), lambda runs: runs["a"]["m"] - runs["b"]["m"]])
def test_one_refused_seed_is_left_out_and_counted(effect):
    """It made the mean NaN, and the claim undecided for ever."""
    findings = runs_of(a=[*HIGH[::-1], 9.1], b=[*LOW, 1.1])
    findings.runs["a"][2] = run("a", 2, 0.0, "diverged")
    findings.runs["b"][3] = Observed("b-3", "finished", 3, {"loss": 3.0})
    (verdict,) = verdicts(asked(size(effect, fewest=5), seeds=7), findings)
    assert verdict.grade == "seen"
    assert min(verdict.n) == (6 if len(verdict.n) > 1 else 5)
    assert "2" in verdict.reason
    assert "diverged" in verdict.reason
    assert "not measured" in verdict.reason


def test_models_of_several_variations_are_counted_together():
    question = asked(more("a", ("b", "c")), most_models(("b", "c"), SINK, "most", "s", "t"), seeds=3, labels="abc")
    versus, most = verdicts(question, runs_of(a=HIGH[:3], b=LOW[:3], c=[*LOW[:2], 9.0]))
    assert versus.found == "3 of 3 against 1 of 6"
    assert (most.k, most.n) == ((1,), (6,))


def test_a_failed_run_is_left_out_and_not_waited_for():
    findings = replace(runs_of(a=HIGH, b=LOW[:5]), failed={"b": {5: "out of memory"}})
    (verdict,) = verdicts(asked(more()), findings)
    assert (verdict.grade, verdict.n) == ("seen", (6, 5))
    assert verdict.reason == "left out: seed 5 of 'b' (failed)"


def test_a_diverged_run_counts_where_the_property_says_so():
    findings = runs_of(a=HIGH, b=LOW)
    findings.runs["a"][0] = run("a", 0, 0.0, "diverged")
    (out,) = verdicts(asked(more()), findings)
    assert out.n == (5, 6)
    (counted,) = verdicts(asked(more(has=Has("m", 3.0, diverged=True))), findings)
    assert counted.k == (6, 0)


def test_a_conditional_claim_counts_its_models():
    question = asked(size(level("m", "a"), among={"a": Has("m", 8.7)}, fewest=4))
    (verdict,) = verdicts(question, runs_of(a=HIGH))
    assert verdict.n == (5,)
    assert verdict.reason == "among the 5 of 6 models of 'a' with m ≥ 8.7"
    wise = SeedWise(lambda runs: runs["a"]["m"], "no reason")
    (by_seed,) = verdicts(asked(size(wise, among={"a": Has("m", 8.7)}, fewest=4)), runs_of(a=HIGH))
    assert by_seed.n == (5,)


def test_counts_may_ask_only_models_that_have_a_sink_to_begin_with():
    """A model without one is no failure of "it moves"."""
    moved = Has("m", 9.0)
    most = most_models("a", moved, "most", "s", "t", among={"a": Has("m", 8.7)})
    versus = more_models("a", "b", moved, "more", "s", "t", among={"a": Has("m", 8.7)})
    first, second = verdicts(asked(most, versus), runs_of(a=HIGH, b=LOW))
    assert (first.k, first.n, first.reason) == ((4,), (5,), "among the 5 of 6 models of 'a' with m ≥ 8.7")
    assert (second.k, second.n) == ((4, 0), (5, 6))
    (early,) = verdicts(asked(most), runs_of(a=HIGH[:5]))
    assert (
        early.reason == "5 of 6 runs; the others can no longer decide it; among the 4 of 5 models of 'a' with m ≥ 8.7"
    )
    with pytest.raises(InputError, match="does not read: choose from a"):
        asked(most_models("a", moved, "most", "s", "t", among={"x": moved}))


def test_a_refusal_has_its_words():
    refused = SeedWise(lambda runs: math.nan if runs["a"]["m"] > 9.4 else runs["a"]["m"], "too high to tell")
    (verdict,) = verdicts(asked(size(refused, fewest=4)), runs_of(a=HIGH))
    assert verdict.reason == "left out: seed 1 (too high to tell); left out: seed 5 (too high to tell)"
    assert verdict.n == (4,)


def test_too_few_models_are_open():
    (verdict,) = verdicts(asked(size(gap("m", "a", "b")), seeds=3), runs_of(a=HIGH[:3], b=LOW[:3]))
    assert (verdict.grade, verdict.reason) == ("open", "fewer than 6 models")


def test_a_difference_of_loss_stands_in_the_row():
    findings = runs_of(a=HIGH, b=LOW)
    findings.runs["b"].update({seed: run("b", seed, value, loss=3.3) for seed, value in enumerate(LOW)})
    counts, loss = verdicts(asked(more(), size(gap("loss", "b", "a"), margin=0.1)), findings)
    assert counts.reason == "losses differ by 0.30 nats"
    assert "losses differ" not in loss.reason
    findings.runs["b"].popitem()
    assert verdicts(asked(more()), findings)[0].reason == "11 of 12 runs; losses differ by 0.30 nats"
    pooled = asked(more_models("a", ("b", "c"), Has("m", 8.7), "c", "s", "t"), labels="abc")
    both = runs_of(a=HIGH, b=LOW, c=LOW)
    for label, loss in (("b", 2.8), ("c", 3.2)):  # whose mean is that of 'a'
        both.runs[label].update({seed: run(label, seed, value, loss=loss) for seed, value in enumerate(LOW)})
    assert "losses differ by 0.20 nats" in verdicts(pooled, both)[0].reason
    series = asked(size(rising("m", "acb")), labels="acb")
    three = replace(findings, runs={**findings.runs, "c": runs_of(c=HIGH).runs["c"]})
    assert "losses differ by 0.30 nats" in verdicts(series, three)[0].reason


def test_the_loss_is_that_of_the_text_on_which_the_sink_is_read() -> None:
    def findings(held_out: float, training: float) -> Findings:
        metrics = {"loss": 3.0, "train_loss": 3.0, "m": 0.0, "m/training": 0.0}
        other = metrics | {"loss": held_out, "train_loss": training}
        cells = {
            label: {seed: Observed(f"{label}-{seed}", "finished", seed, values) for seed in range(6)}
            for label, values in (("a", metrics), ("b", other))
        }
        return Findings("q", "nano", 3, cells)

    on_training = asked(more(has=Has("m/training", 3.0)))
    assert verdicts(on_training, findings(12.0, 3.0))[0].reason == ""
    assert verdicts(on_training, findings(3.0, 0.2))[0].reason == "losses differ by 2.80 nats"
    assert verdicts(asked(more()), findings(12.0, 3.0))[0].reason == "losses differ by 9.00 nats"


def test_a_series_needs_all_of_its_labels():
    question = asked(size(rising("m", "abc")), labels="abc")
    assert verdicts(question, runs_of(a=LOW, b=LOW, c=HIGH))[0].value == pytest.approx(8.0)
    (verdict,) = verdicts(question, runs_of(a=LOW, c=HIGH))
    assert (verdict.grade, verdict.reason) == ("open", "12 of 18 runs")


def test_without_runs_all_is_open_with_the_reason():
    question = asked(more(), not_at={"mini": "no such model"})
    assert [each.graded for each in verdicts(question, None)] == ["open (no runs)"]
    assert [each.graded for each in verdicts(question, None, "mini")] == ["open (no such model)"]


def test_an_effect_of_no_variation_is_bad_input():
    for claim in (more("a", "x"), size(gap("m", "x", "a")), size(lambda runs: runs["x"]["m"])):
        with pytest.raises(InputError, match="unknown variation of experiment 'q' 'x'"):
            verdicts(asked(claim), runs_of(a=HIGH, b=LOW))


def test_an_error_of_an_effect_is_not_taken_for_a_missing_run():
    def broken(runs):
        return runs["a"]["m"] + {}["nothing"]

    with pytest.raises(InputError, match="experiment 'q', claim 'size': its function raises KeyError: 'nothing'"):
        verdicts(asked(size(broken)), runs_of(a=HIGH, b=LOW))


def test_one_refused_run_of_six_does_not_leave_a_size_open_for_ever():
    """ "judge([NaN, 8.8, 5.9, 6.1, 9.6, 4.3])": the seeds are fixed, so no further run could decide."""
    lacking = [math.nan, 8.8, 5.9, 6.1, 9.6, 4.3]
    for claim in (size(level("m", "a"), 0.1), above_ratio(1.5, log_ratio("m", "a", "b"), "ratio", "larger", "t")):
        (verdict,) = verdicts(asked(claim), runs_of(a=lacking, b=LOW))
        assert (verdict.grade, verdict.n[0]) == ("seen", 5)
        assert "left out: seed 0 of 'a' (not measured)" in verdict.reason
        (four,) = verdicts(asked(claim), runs_of(a=[math.nan, *lacking[:5]], b=LOW))
        assert (four.grade, four.n[0]) == ("open", 4)
    # It is for runs that were refused: five that are planned are too few.
    (planned,) = verdicts(asked(size(level("m", "a"), 0.1), seeds=5), runs_of(a=HIGH[:5], b=LOW[:5]))
    assert (planned.grade, planned.reason) == ("open", "fewer than 6 models")


def test_runs_that_can_no_longer_decide_are_said():
    most = most_models("a", SINK, "most", "most have it", "t")
    cases = (([9.0, 1.0, 9.0], True), ([9.0, 9.0, 9.0], False), ([1.0, 1.0, 1.0], False))
    for values, vain in cases:  # six of seven have p = .06, and so has one of seven
        (verdict,) = verdicts(asked(most, seeds=7), runs_of(a=values))
        assert verdict.undecidable == bool(vain)
        assert verdict.reason == "3 of 7 runs" + ("; the others can no longer decide it" if vain else "")
    (versus,) = verdicts(asked(more(), seeds=6), runs_of(a=[1.0, 1.0], b=[9.0]))
    assert versus.reason == "3 of 12 runs"  # the opposite may still be found
    (never,) = verdicts(asked(more(), seeds=6), runs_of(a=[1.0, 1.0, 9.0, 9.0], b=[1.0, 9.0, 9.0]))
    assert never.reason.startswith("7 of 12 runs; the others can no longer")


def test_a_metric_that_no_run_has_is_named_with_the_nearest():
    (verdict,) = verdicts(asked(more(has=Has("los", 3.0))), runs_of(a=HIGH, b=LOW))
    assert verdict.grade == "open"
    assert "no run has 'los', nearest: loss" in verdict.reason


def test_what_an_effect_reads_is_found_without_runs():
    question = asked(more(), size(lambda runs: runs["b"]["m"]))
    assert [labels_read(question, each) for each in question.assertions] == [["a", "b"], ["b"]]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"seeds": None}, r"does not say how many models decide: write seeds=6"),
        ({"seeds": ()}, r"seeds=\(\): at least one"),
        ({"seeds": (1, 1)}, "none twice"),
        ({"seeds": (-1, 2)}, "from 0 on"),
        ({"seeds": 2.5}, r"seeds=2.5: at least one"),
        ({"seeds": "six"}, r"seeds='six': at least one"),
        ({"labels": "aa"}, "two variations are called 'a'"),
        ({"labels": ""}, "needs variations and claims"),
    ],
)
def test_a_question_says_how_many_models_decide(wrong, words):
    with pytest.raises(InputError, match=words):
        asked(more(), **wrong)


def test_claims_have_names_and_rules_of_their_own():
    with pytest.raises(InputError, match="two claims are called 'more'"):
        asked(more(), more())
    with pytest.raises(InputError, match="is for identities"):
        Assertion(Claim("c", "s", "t", EachWithin(0)), level("m", "a"))
    with pytest.raises(InputError, match="a Count is decided by Shares"):
        Assertion(more().claim, level("m", "a"))
    with pytest.raises(InputError, match="at_least=2 exceeds at_most=1"):
        Has("m", 2.0, 1.0)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (
            lambda: above_ratio(0.0, log_ratio("m", "a", "b"), "c", "s", "t"),
            "claim 'c': margin=0, expected more",
        ),
        (lambda: within(-0.1, gap("m", "a", "b"), "c", "s", "t"), "claim 'c': margin=-0.1, expected more than 0"),
        (lambda: above(math.nan, gap("m", "a", "b"), "c", "s", "t"), "'margin' = nan"),
        (lambda: above(0.1, rising("m", ["a"]), "c", "s", "t"), "at least two labels"),
        (lambda: above(0.1, gap("m", "a", "a"), "c", "s", "t"), "'a' twice"),
        (lambda: above(0.1, log_ratio("m", "a", "a"), "c", "s", "t"), "'a' twice"),
        (lambda: above(0.1, rising("m", "aba"), "c", "s", "t"), "'a' twice"),
        (lambda: above(0.1, metric_gap("a", "m", "m"), "c", "s", "t"), "'m' twice"),
        (lambda: above(0.1, log_quotient("a", "m", "m"), "c", "s", "t"), "'m' twice"),
        (lambda: above(0.1, peak("m", ["a"], at="a"), "c", "s", "t"), "at least two labels"),
        (lambda: above(0.1, peak("m", "ab", at="c"), "c", "s", "t"), "unknown label 'c'"),
        (lambda: above(0.1, range_of("m", ["a"]), "c", "s", "t"), "at least two labels"),
        (lambda: above(0.1, gap_at_equal_loss("a", "a"), "c", "s", "t"), "'a' twice"),
        (lambda: above(0.1, log_ratio_at_equal_loss("a", "a"), "c", "s", "t"), "'a' twice"),
        (lambda: more_models("a", "a", SINK, "c", "s", "t"), "'a' twice"),
        (lambda: more_models(["a", "b"], ["b"], SINK, "c", "s", "t"), "'b' twice"),
        (lambda: most_models((), SINK, "c", "s", "t"), "a variation in each group"),
        (lambda: most_models("a", SINK, "c", "s", "t", share=1.5), "claim 'c' field 'share' = 1.5"),
        (lambda: more_models("a", "b", SINK, "c", "s", "t", fewest=1), "claim 'c' field 'fewest' = 1"),
        (lambda: more_models("a", "b", SINK, "c", "", "t"), "claim 'c' field 'statement' = ''"),
        (lambda: more_models("a", "b", SINK, "c", "s", "t", among={"d": SINK}), "does not read: choose from a, b"),
    ],
)
def test_a_claim_that_nothing_could_decide_is_refused_in_one_line(wrong, words):
    with pytest.raises(InputError, match=words):
        wrong()


# Registration.


def registered(question: Question, sha: str = "a" * 64) -> Question:
    return replace(question, registration=Registration(Path("q.py"), sha))


def carrying(findings: Findings, sha: str, cells: int = 99) -> Findings:
    """The same runs, so many of which carry this hash of the question 'q'."""
    made = {}
    left = cells
    for label, seeds in findings.runs.items():
        made[label] = {}
        for seed, one in seeds.items():
            note = {"q": {"sha256": sha, "file": "q.py"}} if left > 0 else {}
            made[label][seed] = replace(one, registered=note)
            left -= 1
    return replace(findings, runs=made)


def test_a_question_registered_before_its_runs_is_confirmed():
    question, findings = registered(asked(more())), carrying(runs_of(a=HIGH, b=LOW), "a" * 64)
    assert verdicts(question, findings)[0].grade == "confirmed"
    assert standing_of(question, findings).words.startswith("registered before its 12 runs")
    assert standing_of(question, None).words.startswith("registered: no run yet")


def test_a_changed_question_is_told_with_both_hashes():
    question = registered(asked(more()), "b" * 64)
    findings = carrying(runs_of(a=HIGH, b=LOW), "a" * 64)
    stands = standing_of(question, findings)
    assert "changed after 12 of 12 runs: sha256 was aaaaaaaaaaaa, is bbbbbbbbbbbb" in stands.words
    assert verdicts(question, findings)[0].grade == "seen"


@pytest.mark.parametrize("cells", [0, 5])
def test_runs_that_started_without_the_file_are_unregistered(cells):
    question, findings = registered(asked(more())), carrying(runs_of(a=HIGH, b=LOW), "a" * 64, cells)
    assert standing_of(question, findings).words == f"unregistered: {12 - cells} of 12 runs started without this file"
    assert verdicts(question, findings)[0].grade == "seen"


def test_the_opposite_needs_no_registration():
    """ "Not seen" of an unregistered question is no less severe."""
    assert verdicts(asked(more("b", "a")), runs_of(a=HIGH, b=LOW))[0].grade == "not seen"


def test_a_question_without_a_file_is_unregistered():
    assert standing_of(asked(more()), runs_of(a=HIGH)).words == "unregistered: the question has no file of its own"


@pytest.mark.parametrize(("strongest", "warned"), [(0.0, True), (0.9, True), (1.0, False)])
def test_claims_about_sinks_warn_where_no_model_has_one(strongest, warned):
    question = asked(most_models("a", Has("sink_0", 3.0), "c", "s", "t"))
    runs = {"a": {0: Observed("a-0", "finished", 0, {"strongest": strongest, "sink_0": 0.0})}}
    assert bool(without_sinks(question, Findings("q", "nano", 1, runs))) is warned
    other = asked(size(level("loss", "a")))
    assert without_sinks(other, Findings("q", "nano", 1, runs)) == ""
