"""Figures of the page of findings: well-formed, values at their places, text as text."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from sinkscope.experiments import Variation
from sinkscope.report.experiments import entry
from sinkscope.report.experiments.svg import Panel, dots, mean, values_of
from tests.report.experiments.conftest import EVIL, found, question, run

SVG = "{http://www.w3.org/2000/svg}"


def test_a_circle_for_each_seed_and_published_value(normalisation):
    root = ElementTree.fromstring(dots(normalisation))
    circles = [circle.attrib for circle in root.iter(f"{SVG}circle")]
    panel = Panel("", 210, "", values_of(normalisation, "sink_0"))
    places = [float(circle["cx"]) for circle in circles]
    assert places[:6] == pytest.approx([panel.at(value) for value in (9.0, 10.0, 11.0, 1.0, 1.0, 1.0)], abs=0.1)
    assert len(circles) == 6 + 2 + 6 + 1  # sink rates and their published values, losses and the one published
    right = max(float(text.attrib["x"]) for text in root.iter(f"{SVG}text"))
    assert max(float(circle["cx"]) for circle in circles) < right < 860 - 40, "values have room"
    words = [text.text for text in root.iter(f"{SVG}text")]
    assert {"softmax", "sigmoid", "10", "18.2", "ours: sink rate at position 0 (%)"} <= set(words)


def test_an_axis_begins_at_zero_or_below():
    assert Panel("", 0, "", [[2.0, 4.0], []]).ends == (0, 4)
    assert Panel("", 0, "", [[-2.0]]).ends == (-2, 0)
    assert Panel("", 100, "", [[0.0, 4.0]]).at(2.0) == 100 + 230 / 2
    assert Panel("", 0, "", []).ends == (0, 1)


def test_what_has_no_value_is_a_dash(weight_decay):
    assert values_of(weight_decay, "sink_0") == [[6, 6], [5.9, 5.9, 5.0], [4, 4]]
    assert mean([]) is None


def test_labels_are_text_and_cut():
    label = f"{EVIL} {'long ' * 10}"
    asked = question(variations=(Variation(label), Variation("softmax"), Variation("sigmoid")))
    made = entry(asked, found(softmax={0: run("softmax", 0, 1.0)}))
    assert EVIL not in dots(made)
    longest = max(len(text.text) for text in ElementTree.fromstring(dots(made)).iter(f"{SVG}text"))
    assert longest < 40
