"""The answer of a measurement in three sentences, from planted sinks."""

from __future__ import annotations

import numpy as np
import pytest

from sinkscope.measurement import Measurement, strongest_position
from sinkscope.measurement.finding import answer
from sinkscope.report.observatory.page import observatory_page
from sinkscope.report.page import render


def test_a_planted_sink_is_answered_with_its_place_its_mechanism_and_what_to_do(complete: Measurement) -> None:
    where, how, matters = answer(complete.data, 0.3, "sinkscope intervene planted")
    found = strongest_position(complete.data, 0.3)
    assert found is not None
    assert where.startswith(f"Yes: position {found.position} receives more than ε = 0.3")
    assert f"in {found.rate:.1f} % of (layer, head) pairs" in where
    heads = complete.heads(0.3, found.position)
    resting = heads[heads["alpha"] > 0.3]
    assert all(f"layer {layer}" in where or f" {layer}" in where for layer in resting["layer"].unique())
    assert f"{resting['value_ratio'].min():.2g}" in how
    assert f"{resting['value_ratio'].max():.2g}" in how
    assert "“sinkscope intervene planted --on positions:0" in matters
    assert matters.endswith("does the same to other tokens.")


def test_without_a_sink_the_answer_is_no_and_without_numbers_it_is_unknown(complete: Measurement) -> None:
    data = complete.data.copy(deep=True)
    data["attention_received"][:] = 0.01
    [no] = answer(data, 0.3)
    assert no.startswith("No: on this input no position")
    data["attention_received"][:] = np.nan
    unknown = answer(data, 0.3)
    assert unknown[0].startswith("Whether there is a sink is unknown")
    assert answer(complete.data.drop_vars("attention_received"), 0.3) == []


def test_a_head_that_rests_on_a_token_in_one_sample_alone_is_no_sink(complete: Measurement) -> None:
    """A sink is where a head rests, whatever the text; over many heads some number is large in some sample."""
    data = complete.data.copy(deep=True)
    data["attention_received"][:] = 0.1
    data["attention_received"][{"sample": 0, "layer": 0, "head": 0, "position": 1}] = 0.4
    where, *_ = answer(data, 0.3)
    share = 100 / int(np.prod([data.sizes[name] for name in ("sample", "layer", "head")]))
    assert where.startswith("Hardly: on average over samples no head gives a position more than ε = 0.3")
    assert f"position 1 receives that in {share:.1f} % of (sample, layer, head), in layer" in where


def test_values_that_are_not_short_are_not_called_so(complete: Measurement) -> None:
    data = complete.data.copy(deep=True)
    data["value_norm"][:] = 1.0
    _, how, _ = answer(data, 0.3)
    assert "its value norm is 1.0 times the others'" in how
    assert "adds little" not in how


def test_a_sink_elsewhere_names_its_position_in_the_command(complete: Measurement) -> None:
    data = complete.data.copy(deep=True)
    received = data["attention_received"]
    data["attention_received"] = received.roll(position=2, roll_coords=False)
    where, _, matters = answer(data, 0.3)
    assert where.startswith("Yes: position 2 ")
    assert "sinkscope intervene MODEL --on positions:2”" in matters


@pytest.mark.slow
def test_the_page_opens_with_the_answer_and_folds_the_rest_by_question(complete: Measurement) -> None:
    page = observatory_page(complete, "planted", 0.3)
    html = render(page)
    assert list(page.answer) == answer(complete.data, 0.3)
    assert html.index('class="answer"') < html.index('class="lead"') < html.index("In which heads?")
    questions = list(dict.fromkeys(section.question for section in page.sections))
    assert questions[0] == "In which heads?"
    assert questions[-1] == "By which mechanism?"
    assert html.count('<details class="question"') == len(questions)
    assert html.count(" open><summary><h2>") == 1
    assert all(section.table is not None for section in page.sections if section.figures)


def test_what_the_heads_take_from_the_sink_is_said_of_those_that_rest_on_it(complete: Measurement) -> None:
    data = complete.data.copy(deep=True)
    resting = complete.heads(0.3, 0)
    resting = resting[resting["alpha"] > 0.3]
    assert len(resting) > 1
    data["rest_output_norm"][:] = 2.0
    data["sink_output_norm"][:] = 50.0  # of heads that do not rest on it
    for number, (layer, head) in enumerate(resting[["layer", "head"]].values):
        data["sink_output_norm"][:, layer, head] = 1.0 if number == 0 else 3.0
    said = answer(data, 0.3)[2]
    assert said.startswith(
        "What these heads read from the sink has 1.0 times (quartiles 0.75 to 1.2) the norm of what is read from all "
        "other tokens"
    )


def test_a_bias_is_called_one_and_what_was_not_observed_is_not_said(complete: Measurement) -> None:
    data = complete.data.copy(deep=True)
    data["sink_output_constancy"][:] = 0.95
    assert "nearly the same for every token, like a bias; a measurement" in answer(data, 0.3)[2]
    data["sink_output_constancy"][:] = 0.5
    assert "bias" not in answer(data, 0.3)[2]
    for less in (data.drop_vars("sink_output_norm"), data.assign(rest_output_norm=0 * data["rest_output_norm"])):
        assert answer(less, 0.3)[2].startswith("A measurement cannot tell whether the model needs it: “")
