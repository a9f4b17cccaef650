import pandas as pd
import pytest

from sinkscope.report.demo_page import demo_page, evaluated, outcome, quick_outcome, quick_page
from sinkscope.report.runs import Seeds, StoredRun

INPUTS = pd.DataFrame({"input": ["natural text"], "sink_rate": [11.6], "low": [10.0], "high": [13.0]})


def test_the_full_page_sets_both_models_side_by_side(runs, measurement):
    page = demo_page(INPUTS, {"natural text": measurement}, runs, {"softmax": measurement, "sigmoid": measurement}, 0.3)
    assert [section.title for section in page.sections] == [
        "The sink over training",
        "Attention received, per layer and head",
        "Hidden norms, per position and depth",
        "The first token against the others",
        "Value norms",
        "The sink on different inputs",
    ]
    assert list(page.sections[1].figures) == ["softmax", "sigmoid"]
    assert [card.value for card in page.headlines] == ["6.4 %", "3.0 ×", "0.0 %", "3.0 ×"]
    assert all(section.sentence for section in page.sections)


def test_the_outcome_is_told_in_numbers(runs):
    assert "softmax ended at 6.4 % after 200 steps; sigmoid ended at 0.0 % after 200 steps" in outcome(runs)


def seeds(*curves: StoredRun) -> Seeds:
    return Seeds("softmax (stored)", curves)


def test_the_quick_page_says_what_was_stored_and_what_was_live(runs, measurement):
    live = StoredRun("softmax (live)", runs[1].rows[:7])
    stored = [seeds(runs[0]), Seeds("sigmoid (stored)", (runs[1],))]
    page = quick_page(INPUTS, {"natural text": measurement}, stored, live, 0.3)
    assert "stored" in page.lead
    training = next(section for section in page.sections if section.title == "The sink over training")
    assert "passed 1 % at step 50" in training.sentence
    assert "Sigmoid (stored) ended at 0.0 % after 200 steps." in training.sentence
    assert "stopped at step 60, at 0.0 %" in training.sentence
    assert [column for column in training.table if "sink rate" in column] == [
        f"{name}: sink rate (%)" for name in ("softmax (stored)", "sigmoid (stored)", "softmax (live)")
    ]


def test_a_live_run_that_never_came_to_an_evaluation_is_no_error(runs, measurement):
    live = StoredRun("softmax (live)", ())
    assert not evaluated(StoredRun("live", ({"step": 0, "sink/position_0": 0.0},)))
    assert evaluated(runs[1])
    assert "before its first evaluation" in quick_outcome([seeds(runs[0])], live)
    page = quick_page(INPUTS, {"natural text": measurement}, [seeds(runs[0])], live, 0.3)
    assert len(page.headlines) == 2


@pytest.mark.parametrize("height", [0.0, 0.5])
def test_a_stored_curve_without_a_sink_does_not_claim_one(height):
    flat = StoredRun("shipped model", ({"step": 10, "sink/position_0": height},))
    assert "passed" not in quick_outcome([seeds(flat)], StoredRun("live", ()))


def test_seeds_are_told_by_their_mean_and_their_range(runs):
    both = seeds(*runs)
    assert both.mean.curve("sink/position_0") == ([50, 100, 150, 200], [0.8, 1.6, pytest.approx(2.4), 3.2])
    assert both.ends("sink/position_0") == (0.0, 6.4)
    assert both.ends("no such metric") is None
    assert "ended at 3.2 %, 0.0 to 6.4 % over 2 seeds after 200 steps" in quick_outcome([both], runs[1])
