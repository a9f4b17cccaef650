"""Figures whose shape is that of the claim: points where the values are, each shape where it belongs."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from sinkscope.experiments import Findings, Observed, Question, Variation, above, level
from sinkscope.experiments.effects import half_way
from sinkscope.report.experiments import entry
from sinkscope.report.experiments.names import title
from sinkscope_replication.page import page as findings_page
from sinkscope_replication.page.shapes import curves_of, drawing, over_positions, over_time, profile_of, readings_of
from tests_replication.page.test_findings_figures import SVG, circles

STEPS = (100, 200, 400)


def run(seed: int, **metrics: float) -> Observed:
    curves = {"sink/position_0": (0.0, 2.0 + seed, 8.0), "validation_loss": (5.0, 4.0, 3.0)}
    return Observed(f"run-{seed}", "finished", seed, metrics, STEPS, curves)


def made(effect, *variations: Variation, **metrics: float):
    claim = above(0.0, effect, "claim", "it is so", "Table 4")
    runs = {each.label: {seed: run(seed, **metrics) for seed in range(2)} for each in variations}
    return entry(Question("q", "Is it?", "Table 4", variations, (claim,)), Findings("q", "nano", 2, runs))


def paths(figure: str, name: str) -> list[list[tuple[float, float]]]:
    """The points of the line in the group of this name."""
    group = ElementTree.fromstring(figure).find(f".//{SVG}g[@id='{name}']")
    lines = [each.attrib["d"].split() for each in group.iter(f"{SVG}path") if each.attrib["d"].count("L") > 1]
    numbers = [[float(part) for part in line if part not in ("M", "L")] for line in lines]
    return [list(zip(points[::2], points[1::2], strict=True)) for points in numbers]


def words(figure: str) -> set[str | None]:
    return {each.text for each in ElementTree.fromstring(figure).iter(f"{SVG}text")}


def test_a_claim_about_time_is_a_curve_over_the_steps():
    asked = made(lambda runs: half_way(runs["one"], "sink/position_0"), Variation("one", {}, {"sink_0": 18.2}))
    assert curves_of(asked) == ["sink/position_0", "validation_loss"]
    figure = drawing(asked)
    assert figure == over_time(asked)
    [line] = paths(figure, "ours-0-0")
    xs, ys = zip(*line, strict=True)
    assert (xs[1] - xs[0]) / (xs[2] - xs[0]) == pytest.approx(1 / 3, abs=0.01)
    assert (ys[0] - ys[1]) / (ys[0] - ys[2]) == pytest.approx(2.5 / 8, abs=0.01)  # the mean of 2 and 3, of 8
    assert {"training step", "ours: sink rate at position 0 (%)", "— one"} <= words(figure)
    assert len(circles(ElementTree.fromstring(figure), "published-0")) == 1


def test_a_claim_about_positions_shows_them_all():
    rates = {f"sink_{position}": 10.0 * (position == 2) for position in range(17)}
    asked = made(level("sink_2", "one"), Variation("one", {}, {"sink_0": 0.0, "sink_2": 69.6}), **rates)
    assert list(profile_of(asked).values()) == list(range(17))
    figure = drawing(asked)
    assert figure == over_positions(asked)
    root = ElementTree.fromstring(figure)
    found = circles(root, "ours-0-0")
    assert len(found) == 17
    heights = [y for _, y in found]
    assert heights.index(min(heights)) == 2
    assert len(circles(root, "published-0")) == 2
    [name] = [each for each in root.iter(f"{SVG}text") if each.text == "one"]
    highest = min(circles(root, "published-0"), key=lambda point: point[1])
    place = re.search(r"translate\(([\d.]+) ([\d.]+)\)", name.attrib.get("transform", ""))
    x, y = (float(place[1]), float(place[2])) if place else (float(name.attrib["x"]), float(name.attrib["y"]))
    assert (x - highest[0], y - highest[1]) == pytest.approx((6, 3), abs=2), "the panel beside names its circles"


def test_masses_of_positions_are_shown_where_every_variation_has_them():
    rates = {f"sink_{position}": 1.0 for position in range(17)}
    masses = {"sink_mass": 1.0, **{f"sink_mass_{position}": 1.0 for position in range(1, 17)}}
    asked = made(level("sink_2", "one"), Variation("one"), **rates, **masses)
    assert "sink_mass" in profile_of(asked)
    runs = {"one": {0: run(0, **rates, **masses)}, "two": {0: run(0, **rates)}}
    claim = above(0.0, level("sink_2", "one"), "claim", "it is so", "Table 4")
    both = Question("q", "Is it?", "Table 4", (Variation("one"), Variation("two")), (claim,))
    assert "sink_mass" not in profile_of(entry(both, Findings("q", "nano", 1, runs)))
    assert profile_of(made(level("sink_0", "one"), Variation("one"), **rates)) == {}


def test_a_dose_is_a_line_that_stops_where_a_dose_has_no_runs():
    doses = [Variation(f"{dose:g}", {"optimizer.weight_decay": dose}, {"sink_0": dose}) for dose in (0, 0.1, 0.5, 2)]
    claim = above(0.0, level("sink_0", "0"), "claim", "it is so", "Table 2")
    runs = {label: {seed: run(seed, sink_0=value + seed) for seed in range(2)}
            for label, value in (("0", 4.0), ("0.1", 8.0), ("2", 0.0))}  # fmt: skip
    asked = entry(Question("q", "Is it?", "Table 2", tuple(doses), (claim,)), Findings("q", "nano", 2, runs))
    root = ElementTree.fromstring(drawing(asked))
    assert len(circles(root, "ours-0")) == 6
    assert len(circles(root, "published-0")) == 4
    places = sorted({round(x) for x, _ in circles(root, "ours-0")})
    assert (places[1] - places[0]) * 2 == pytest.approx(places[2] - places[1], abs=2), "0.5 keeps its place"
    assert {"0.5", "weight decay", "published, other models"} <= words(drawing(asked))


def test_each_series_of_doses_is_a_line_of_its_own_and_a_baseline_in_none():
    fixed = [
        Variation(f"{norm} {way}", {"attention": {"name": "fixed", "direction": way, "norm": norm}})
        for way in ("first", "uniform")
        for norm in (1, 5, 20)
    ]
    claim = above(0.0, level("sink_0", "zero"), "claim", "it is so", "Table 5")
    asked = Question("q", "Is it?", "Table 5", (Variation("zero", {"attention": "k_bias"}), *fixed), (claim,))
    runs = {variation.label: {0: run(0, sink_0=1.0 + place)} for place, variation in enumerate(asked.variations)}
    drawn = drawing(entry(asked, Findings("q", "nano", 1, runs)))
    assert [f'id="ours-0.joined-{index}"' in drawn for index in range(3)] == [True, True, False]
    assert len(circles(ElementTree.fromstring(drawn), "ours-0")) == 7
    assert "norm of the value" in words(drawn)


def test_readings_of_one_run_that_a_claim_compares_are_joined():
    masses = [f"sink_mass/tokens={tokens}" for tokens in (32, 64, 128)]
    rates = [f"sink_0/tokens={tokens}/epsilon={epsilon}" for tokens in (32, 64) for epsilon in (0.2, 0.3, 0.4)]
    read = [*masses, "sink_0/tokens=32", *rates]
    variations = [Variation(each, {"optimizer.lr": each}) for each in ("one", "times 0.5", "times 0.25")]
    values = {metric: 10.0 - place**2 for place, metric in enumerate(read)}
    asked = made(lambda runs: math.fsum(runs["one"][metric] for metric in read), *variations, **values)
    assert readings_of(asked) == {"sink_mass": masses, "sink": rates}
    drawn = drawing(asked)
    [line] = paths(drawn, "ours-0-0")
    xs, ys = zip(*line, strict=True)
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1])
    assert (ys[1] - ys[0]) / (ys[2] - ys[0]) == pytest.approx(1 / 4, abs=0.01)  # 10, 9 and 6
    assert [len(paths(drawn, name)[0]) for name in ("ours-1-0", "ours-1.1-0")] == [3, 3]  # not joined over lengths
    assert {"128 tokens", "64 tokens, ε = 0.4", "ours: sink mass at position 0 (%)"} <= words(drawn)


def test_readings_that_no_claim_compares_within_a_run_are_not_joined():
    between = made(
        lambda runs: runs["one"]["sink_mass"] - runs["two"]["sink_mass/start"],
        Variation("one"),
        Variation("two"),
        **{"sink_mass": 3.0, "sink_mass/start": 1.0},
    )
    assert readings_of(between) == {}


def test_what_is_no_time_position_or_dose_is_dots_and_what_has_no_value_nothing():
    asked = made(level("loss", "one"), Variation("one"), Variation("two", {"attention": "sigmoid"}), loss=3.0)
    assert "ours-0" in drawing(asked)
    assert curves_of(asked) == []
    assert drawing(made(level("loss", "one"), Variation("one"), loss=math.nan)) == ""


def test_figures_name_metrics_in_words():
    for each in findings_page.entries():
        for metric in [*each.tabled, *each.shown, *curves_of(each)]:
            assert "_" not in title(metric, each.titles), (each.name, metric)
