import pandas as pd
import pytest

from sinkscope.report import sections
from sinkscope.report.demo_page import demo_page, evaluated, outcome
from sinkscope.report.runs import Seeds, StoredRun

INPUTS = pd.DataFrame({"input": ["natural text"], "sink_rate": [11.6], "low": [10.0], "high": [13.0]})


def seeds(*curves: StoredRun) -> Seeds:
    return Seeds("softmax (stored)", curves)


def test_the_page_says_what_was_stored_and_what_was_live(runs, measurement):
    live = [StoredRun("softmax (live)", runs[1].rows[:7]), StoredRun("sigmoid (live)", ())]
    stored = [seeds(runs[0]), Seeds("sigmoid (stored)", (runs[1],))]
    first = [sections.inputs(INPUTS, "Several inputs.")]
    page = demo_page("a model", first, {"natural text": measurement}, stored, live, 0.3, ["An answer."])
    assert [section.title for section in page.sections] == [
        "The sink on different inputs",
        "Attention received, per layer and head",
        "Hidden norms, per position and depth",
        "The first token against the others",
        "Value norms",
        "The sink over training",
    ]
    assert all(section.sentence for section in page.sections)
    assert page.answer == ["An answer."]
    training = page.sections[-1]
    assert "passed 1 % at step 50" in training.sentence
    assert "Sigmoid (stored) ended at 0.0 % after 200 steps." in training.sentence
    assert "softmax (live) reached 0.0 % by step 60" in training.sentence
    assert [column for column in training.table if "sink rate" in column] == [
        f"{name}: sink rate (%)" for name in ("softmax (stored)", "sigmoid (stored)", "softmax (live)")
    ]
    assert page.headlines[0].value == "6.4 %"


def test_a_run_without_an_evaluation_is_no_error_and_no_finding(runs):
    live = StoredRun("softmax (live)", ())
    assert not evaluated(StoredRun("live", ({"step": 0, "sink/position_0": 0.0},)))
    assert evaluated(runs[1])
    said = outcome([seeds(runs[0])], [live])
    assert "before its first evaluation" in said
    assert "emerged" not in said


def test_that_no_sink_has_emerged_is_said_where_none_has(runs):
    flat = StoredRun("softmax (live)", ({"step": 10, "sink/position_0": 0.4},))
    assert "No sink has emerged yet" in outcome([], [flat, runs[1]])
    assert "No sink" not in outcome([], [flat, runs[0]])


@pytest.mark.parametrize("height", [0.0, 0.5])
def test_a_stored_curve_without_a_sink_does_not_claim_one(height):
    flat = StoredRun("shipped model", ({"step": 10, "sink/position_0": height},))
    assert "passed" not in outcome([seeds(flat)], [])


def test_seeds_are_told_by_their_mean_and_their_range(runs):
    both = seeds(*runs)
    assert both.mean.curve("sink/position_0") == ([50, 100, 150, 200], [0.8, 1.6, pytest.approx(2.4), 3.2])
    assert both.ends("sink/position_0") == (0.0, 6.4)
    assert both.ends("no such metric") is None
    assert "ended at 3.2 %, 0.0 to 6.4 % over 2 seeds after 200 steps" in outcome([both], [runs[1]])
