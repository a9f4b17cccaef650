"""Experiments as the report shows them: what claims read, runs in order, what a question leaves out."""

from __future__ import annotations

import math

from sinkscope.experiments import Findings, Variation, above, level
from sinkscope.experiments.effects import curve_correlation
from sinkscope.experiments.question import task
from sinkscope.report.experiments import entry, unknown_entry
from sinkscope.report.experiments.entry import evidence, runs_of
from tests.registering import toy_installed
from tests.report.experiments.conftest import found, question, run


def test_a_claim_knows_the_runs_and_metrics_that_it_reads(normalisation):
    gap, equal_loss = normalisation.claims
    assert gap.reads == {"softmax": ("sink_0",), "sigmoid": ("sink_0",)}
    assert equal_loss.reads == {"softmax": ("loss",), "sigmoid": ("loss",)}
    assert [(seed, part.value) for seed, part in evidence(gap)] == [(0, 8.0), (1, 9.0), (2, 10.0)]
    assert gap.verdict.grade == "seen"


def test_watching_changes_no_verdict(normalisation):
    again = entry(question(), normalisation.findings)
    assert [judged.verdict for judged in again.claims] == [judged.verdict for judged in normalisation.claims]


def test_runs_stand_in_the_order_of_the_question_with_those_that_failed(weight_decay):
    assert [(label, run.seed, run.status) for label, run in weight_decay.runs] == [
        *(("0", seed, "finished") for seed in (0, 1)),
        ("0", 2, "diverged"),
        *(("0.1", seed, "finished") for seed in (0, 1, 2)),
        *(("2", seed, "finished") for seed in (0, 1)),
        ("2", 2, "failed"),
    ]
    assert weight_decay.runs[-1][1].reason.startswith("out of memory")


def test_metrics_are_the_published_ones_then_those_read_and_the_loss_last(normalisation, absent):
    assert normalisation.metrics == ["sink_0", "loss"]
    assert absent.metrics == ["sink_0"]


def test_of_published_metrics_those_that_claims_read_come_first():
    variations = (Variation("softmax", {}, {"sink_0": 18.2}), Variation("k_bias", {}, {"sink_0": 0.0, "slot": 73.3}))
    claims = tuple(above(0.0, level(metric, "k_bias"), metric, metric, "Table 4") for metric in ("slot_mass", "slot"))
    runs = found(softmax={0: run("softmax", 0, 9.0)}, k_bias={0: run("k_bias", 0, 9.0)})
    made = entry(question(variations=variations, assertions=claims), runs)
    assert made.metrics == ["slot", "sink_0", "slot_mass"]


def test_tables_begin_with_what_claims_read_and_end_with_what_is_published():
    read = ("norm_ratio", "loss", "value_ratio", "entropy")
    claims = tuple(above(0.0, level(metric, "softmax"), metric, metric, "Tables 6 and 15") for metric in read)
    made = entry(question(assertions=claims), found(softmax={0: run("softmax", 0, 9.0)}))
    assert made.read == list(read)
    assert made.tabled == [*read, "sink_0"]


def test_where_claims_are_about_curves_the_questions_metrics_stand():
    claim = above(0.5, curve_correlation("softmax", "sink/position_0", "step"), "rises", "it rises", "Tables 6 and 15")
    asked = question(variations=(Variation("softmax"),), assertions=(claim,), shown=("loss", "norm_ratio", "slot"))
    made = entry(asked, found(softmax={0: run("softmax", 0, 9.0)}))
    assert (made.read, made.tabled) == ([], ["norm_ratio", "loss"])


def test_titles_are_those_of_the_task():
    claim = above(0.0, level("slot", "softmax"), "slot", "the slot has some", "Tables 6 and 15")
    with toy_installed():
        asked = question(variations=(Variation("softmax"),), assertions=(claim,), base=task("toy-counting"))
        assert entry(asked, None).title("slot") == "slots that were counted"
    assert entry(question(), None).title("slot") == "sink rate of the slot (%)"


def test_a_question_that_was_not_run_says_why(absent):
    assert (absent.findings, absent.reason, absent.runs, absent.seconds) == (None, "no BOS", [], 0.0)
    assert absent.claims[0].verdict.graded == "open (no BOS)"
    assert entry(question(), None).reason == "no runs"


def test_a_seed_without_a_run_is_watched_in_another():
    softmax = {0: run("softmax", 0, 9.0), 1: run("softmax", 1, 9.0)}
    made = entry(question(), found(softmax=softmax, sigmoid={1: run("sigmoid", 1, 1.0)}))
    assert made.claims[0].reads == {"softmax": ("sink_0",), "sigmoid": ("sink_0",)}
    assert [part.case for part in made.claims[0].verdict.evidence] == ["seed 1"]


def test_findings_without_their_question_show_their_runs():
    made = unknown_entry(Findings("mine", "nano", 1, {"a": {0: run("a", 0, 1.0)}}, {"b": {0: "lost"}}))
    assert [variation.label for variation in made.variations] == ["a", "b"]
    assert [run.status for _, run in made.runs] == ["finished", "failed"]
    assert "in a Python file" in made.reason
    assert math.isnan(made.runs[1][1]["sink_0"])


def test_shared_runs_count_once(normalisation):
    assert len(runs_of([normalisation, normalisation])) == 6
    assert sum(run.seconds for run in runs_of([normalisation, normalisation])) == normalisation.seconds == 6 * 420
