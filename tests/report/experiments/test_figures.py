"""Figures of an experiment: planted values at their places, and JSON that Plotly accepts."""

from __future__ import annotations

import json

import plotly.graph_objects as go
import pytest

from sinkscope.experiments import Findings, Variation
from sinkscope.report.experiments import entry, figures
from tests.report.experiments.conftest import EVIL, doses, question, run


def traces(drawing):
    return {trace["name"]: trace for trace in drawing["data"] if "name" in trace}


def drawings(made):
    doses = [figures.dose_response(made, metric) for metric in made.metrics]
    if not figures.shown_curves(made):
        return doses
    return [*doses, figures.over_training(made), figures.at_equal_loss(made)]


def test_plotly_accepts_every_figure(normalisation, weight_decay, absent):
    for made in (normalisation, weight_decay, absent):
        for drawing in drawings(made):
            assert go.Figure(drawing).to_plotly_json()["data"] is not None
            json.dumps(drawing, allow_nan=False)


def test_each_seed_their_mean_and_range_and_the_published_values(normalisation):
    drawn = traces(figures.dose_response(normalisation, "sink_0"))
    seeds, mean, published = drawn["each seed"], drawn["mean and range"], drawn[list(drawn)[-1]]
    assert seeds["y"] == [9, 10, 11, 1, 1, 1]
    assert (mean["y"], mean["error_y"]["array"], mean["error_y"]["arrayminus"]) == ([10, 1], [1, 0], [1, 0])
    assert (published["y"], published["yaxis"]) == ([18.18, 0.44], "y2")
    assert all(ours < other for ours, other in zip(mean["x"], published["x"], strict=True))
    assert [round(place) for place in seeds["x"]] == [0, 0, 0, 1, 1, 1]


def test_a_value_that_is_published_for_some_stands_at_its_variation(normalisation):
    drawing = figures.dose_response(normalisation, "loss")
    published = drawing["data"][-1]
    assert [round(place) for place in published["x"]] == [0]
    assert drawing["layout"]["xaxis"]["ticktext"] == ["softmax", "sigmoid"]


def test_without_published_values_there_is_no_second_axis(normalisation):
    drawing = figures.dose_response(normalisation, "norm_ratio")
    assert "yaxis2" not in drawing["layout"]
    assert len(drawing["data"]) == 2


def test_runs_without_a_value_are_crosses_with_their_status(weight_decay):
    crosses = traces(figures.dose_response(weight_decay, "sink_0"))["no value"]
    assert crosses["text"] == ["0, seed 2: diverged", "2, seed 2: failed"]
    assert crosses["y"] == [0, 0]


def test_means_are_joined_only_where_one_number_is_varied(normalisation, weight_decay):
    def lines(drawn):
        return [trace for trace in drawn["data"] if trace["mode"] == "lines"]

    [joined] = lines(figures.dose_response(weight_decay, "sink_0"))
    assert joined["x"] == traces(figures.dose_response(weight_decay, "sink_0"))["mean and range"]["x"]
    assert lines(figures.dose_response(normalisation, "sink_0")) == []


def test_options_of_operations_are_doses_in_a_series_for_all_else_that_is_the_same():
    """Two series of an option, beside a baseline of another operation; a field with two values is no series."""
    fixed = [
        Variation(f"{norm} {way}", {"attention": {"name": "fixed", "direction": way, "norm": norm}})
        for way in ("first", "uniform")
        for norm in (1, 5, 20)
    ]

    def asked(*variations):
        return entry(question(variations=variations), None)

    assert [each[:2] for each in figures.doses(asked(Variation("zero", {"attention": "k_bias"}), *fixed))] == [
        ("attention.norm", ("1 first", "5 first", "20 first")),
        ("attention.norm", ("1 uniform", "5 uniform", "20 uniform")),
    ]
    rates = [Variation(f"{rate}", {"optimizer.lr": rate} if rate else {}) for rate in (0, 1, 2)]
    together = [Variation(f"{rate} both", {"optimizer.lr": rate, "steps": rate}) for rate in (1, 2, 3)]
    assert figures.doses(asked(*rates[:2], *together)) == []
    assert [each[:2] for each in figures.doses(asked(*rates, *together))] == [("optimizer.lr", ("0", "1", "2"))]


def test_seeds_are_thin_lines_and_their_mean_a_thick_one(normalisation):
    drawing = figures.over_training(normalisation)
    sink = [trace for trace in drawing["data"] if trace["yaxis"] == "y" and trace["name"] == "softmax"]
    *thin, thick = sink
    assert [trace["y"][-1] for trace in thin] == [9, 10, 11]
    assert thick["y"][-1] == pytest.approx(10)
    assert thick["y"][0] == pytest.approx(10 / 15, abs=1e-5)
    assert thick["x"][:2] == [100, 200]
    assert thick["line"]["width"] > 2 * thin[0]["line"]["width"]
    assert [trace["showlegend"] for trace in sink] == [False, False, False, True]
    losses = [trace for trace in drawing["data"] if trace["yaxis"] == "y2"]
    assert not any(trace["showlegend"] for trace in losses)
    assert drawing["layout"]["yaxis2"]["title"]["text"] == "validation loss (nats)"


def test_at_equal_loss_the_loss_is_the_axis_and_falls(normalisation):
    drawing = figures.at_equal_loss(normalisation)
    thick = drawing["data"][3]
    assert (thick["x"][-1], thick["y"][-1]) == (3, 10)
    assert drawing["layout"]["xaxis"]["autorange"] == "reversed"


def test_a_run_that_diverged_is_drawn_and_stretches_nothing(weight_decay):
    drawing = figures.over_training(weight_decay)
    losses = [trace for trace in drawing["data"] if trace["yaxis"] == "y2" and trace["name"] == "0"]
    assert [trace["y"][-1] for trace in losses] == [3, 3, 20, 3]
    low, high = drawing["layout"]["yaxis2"]["range"]
    assert low < 3 < 4.87 < high < 6
    assert figures.at_equal_loss(weight_decay)["layout"]["xaxis"]["range"] == [high, low]


def test_only_a_diverged_run_is_drawn_too():
    made = entry(doses(), Findings("weight-decay", "nano", 1, {"0": {0: run("a", 0, 1.0)}, "2": {}}))
    assert [len(trace["x"]) for trace in figures.over_training(made)["data"]] == [15, 15]


def test_curves_of_one_run_are_thinned_and_without_nan():
    long = run("a", 0, 1.0)
    steps = tuple(range(1, 1001))
    values = (float("nan"), *(float(step) for step in steps[1:]))
    many = type(long)(**{**vars(long), "steps": steps, "curves": {"validation_loss": values}})
    kept = figures.curves(many, ["validation_loss"])
    assert len(kept["steps"]) == len(kept["validation_loss"]) <= 201
    assert kept["validation_loss"][0] is None
    assert (kept["steps"][-1], kept["validation_loss"][-1]) == (1000, 1000.0)
    assert figures.curves(many, ["something else"]) is None


def test_runs_of_other_tasks_show_the_curves_that_they_have():
    base = run("a", 0, 1.0)
    other = type(base)(
        **{**vars(base), "curves": {"copying": (1.0,) * 15, "excess": (2.0,) * 15, "third": (3.0,) * 15}}
    )
    made = entry(question(), Findings("q", "nano", 1, {"softmax": {0: other}, "sigmoid": {}}))
    assert figures.shown_curves(made) == ["copying", "excess"]
    assert [trace["y"][0] for trace in figures.over_training(made)["data"]] == [1, 2]


def test_where_claims_are_about_other_positions_the_strongest_is_drawn(normalisation):
    base = run("a", 0, 1.0)
    both = type(base)(**{**vars(base), "curves": {**base.curves, "sink/strongest": (9.0,) * 15}})
    elsewhere = question(variations=(Variation("softmax", {}, {"sink_2": 69.64}), Variation("sigmoid")))
    made = entry(elsewhere, Findings("q", "nano", 1, {"softmax": {0: both}, "sigmoid": {}}))
    assert figures.shown_curves(made) == ["sink/strongest", "validation_loss"]
    assert figures.at_equal_loss(made)["data"][0]["y"][0] == 9
    assert figures.shown_curves(normalisation) == ["sink/position_0", "validation_loss"]


def test_figures_show_the_first_variations_of_many(normalisation):
    labels = [f"v{index}" for index in range(40)]
    runs = {label: {0: run(label, 0, 1.0)} for label in labels}
    asked = question(variations=tuple(Variation(label) for label in (*labels, "softmax", "sigmoid")))
    made = entry(asked, Findings("q", "nano", 1, runs))
    assert figures.drawn(made) == labels[:24]
    assert len(figures.dose_response(made, "sink_0")["data"][0]["y"]) == 24


def test_lines_of_many_seeds_are_capped_but_not_their_mean():
    runs = {seed: run("softmax", seed, float(seed)) for seed in range(100)}
    made = entry(question(), Findings("q", "nano", 100, {"softmax": runs, "sigmoid": {}}))
    lines = figures.at_equal_loss(made)["data"]
    assert len(lines) == 60 + 1
    assert lines[-1]["y"][-1] == pytest.approx(49.5)


def test_labels_are_text():
    asked = question(variations=(Variation(EVIL), Variation("softmax"), Variation("sigmoid")))
    made = entry(asked, Findings("q", "nano", 1, {EVIL: {0: run("a", 0, 1.0)}}))
    assert EVIL not in json.dumps([figures.dose_response(made, "sink_0"), figures.over_training(made)])
