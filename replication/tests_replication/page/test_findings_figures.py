"""Figures of the page of findings: well-formed, values at their places, text as text."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from sinkscope.experiments import Variation, above, gap, level
from sinkscope.experiments.effects import where_trained
from sinkscope.report.experiments import entry
from sinkscope.report.experiments.names import title
from sinkscope_replication.page.figures import LINE, WIDEST, Shown, dots, ends, marks_of, mean, metrics_of, values_of
from tests.report.experiments.conftest import EVIL, found, question, run

SVG = "{http://www.w3.org/2000/svg}"


def circles(root: ElementTree.Element, panel: str) -> list[tuple[float, float]]:
    """Where the circles of a panel are."""
    group = root.find(f".//{SVG}g[@id='{panel}']")
    return [(float(each.attrib["x"]), float(each.attrib["y"])) for each in group.iter(f"{SVG}use")]


def test_a_circle_for_each_seed_and_published_value(normalisation):
    root = ElementTree.fromstring(dots(normalisation))
    ours = circles(root, "ours-0")
    least, most = 1.0, 11.0
    left, right = ours[-1][0], ours[2][0]
    wanted = [(value - least) / (most - least) for value in (9.0, 10.0, 11.0, 1.0, 1.0, 1.0)]
    assert [(x - left) / (right - left) for x, _ in ours] == pytest.approx(wanted, abs=0.001)
    assert len({y for _, y in ours[:3]}) == len({y for _, y in ours[3:]}) == 1
    assert ours[0][1] < ours[3][1], "variations go down the page"
    number = {panel: len(circles(root, panel)) for panel in ("published-0", "ours-1", "published-1")}
    assert number == {"published-0": 2, "ours-1": 6, "published-1": 1}
    texts = list(root.iter(f"{SVG}text"))
    last = max(float(text.attrib["x"]) for text in texts)
    assert max(x for x, _ in circles(root, "published-0")) < last < 0.95 * float(root.attrib["viewBox"].split()[2])
    words = {text.text for text in texts}
    assert {"softmax", "sigmoid", "10", "18.2", "ours: sink rate at position 0 (%)"} <= words


def test_an_axis_begins_at_zero_or_below():
    assert ends([[2.0, 4.0], []]) == (0, 4)
    assert ends([[-2.0]]) == (-2, 0)
    assert ends([]) == (0, 1)


def test_an_axis_of_losses_shows_how_far_they_are_apart():
    assert ends([[2.8], [3.1]], zero=False) == (2.8, 3.1)
    assert ends([[2.8], []], zero=False) == (0, 2.8), "one alone is told by its distance from zero"
    one, other = (replace(run(label, 0, 1.0), metrics={"loss": loss}) for label, loss in (("one", 2.8), ("other", 3.1)))
    claim = above(0.0, gap("loss", "other", "one"), "claim", "it is so", "Table 2")
    asked = question(variations=(Variation("one"), Variation("other")), assertions=(claim,))
    root = ElementTree.fromstring(dots(entry(asked, found(one={0: one}, other={0: other}))))
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert texts.count("2.8") == texts.count("3.1") == 2, "at the end of the axis and beside the circle"


def test_marks_that_would_stand_over_each_other_leave_zero():
    assert marks_of(-0.005, 0.5) == [0, 0.5]
    assert marks_of(-0.5, 0.02) == [-0.5, 0]
    assert marks_of(-0.5, 0.5) == [-0.5, 0, 0.5]
    assert marks_of(2.8, 3.1) == [2.8, 3.1]


def test_what_the_first_claim_reads_is_shown_first_and_the_loss_that_guards_it_behind():
    published = {"sink_0": 18.2, "loss": 3.7, "norm_ratio": 30.0}
    variations = (Variation("softmax", {}, published), Variation("sigmoid"))
    metrics = {"sink_mass": 5.0, "sink_0": 9.0, "norm_ratio": 4.0, "loss": 3.0}
    made = {label: {0: replace(run(label, 0, 9.0), metrics=metrics)} for label in ("softmax", "sigmoid")}
    effects = {
        "mass": where_trained(("sigmoid",), "softmax", 1.0, level("sink_mass", "sigmoid")),
        "norm": level("norm_ratio", "softmax"),
        "loss": level("loss", "softmax"),
    }
    claims = {name: above(0.0, effect, name, "it is so", "Table 2") for name, effect in effects.items()}

    def shown(*names):
        asked = question(variations=variations, assertions=tuple(claims[name] for name in names))
        return [metric.metric for metric in metrics_of(entry(asked, found(**made)))]

    assert shown("mass") == ["sink_mass", "sink_0"]
    assert shown("mass", "norm") == ["sink_mass", "norm_ratio"], "what is published and read stands before the others"
    assert shown("loss") == ["loss", "sink_0"], "a claim about the loss alone is about the loss"


def test_the_same_values_give_the_same_file(normalisation):
    assert dots(normalisation) == dots(normalisation)


def test_what_has_no_value_is_a_dash(weight_decay):
    assert values_of(weight_decay, Shown("sink_0")) == [[6, 6], [5.9, 5.9, 5.0], [4, 4]]
    assert mean([]) is None


def test_labels_are_text_and_cut():
    label = f"{EVIL} {'long ' * 10}"
    asked = question(variations=(Variation(label), Variation("softmax"), Variation("sigmoid")))
    made = entry(asked, found(softmax={0: run("softmax", 0, 1.0)}))
    assert EVIL not in dots(made)
    longest = max(len(text.text) for text in ElementTree.fromstring(dots(made)).iter(f"{SVG}text"))
    assert longest < 40


def test_a_long_heading_breaks_before_the_panel_beside():
    long, short = ("sink_0/swapped=4", "sink_0")
    drawn = {}
    for metric in (long, short):
        claim = above(0.0, level(metric, "softmax"), "one", "there is one", "Table 1")
        made = replace(run("softmax", 0, 9.0), metrics={metric: 4.0})
        asked = question(variations=(Variation("softmax", {}, {metric: 57.6}),), assertions=(claim,))
        drawn[metric] = ElementTree.fromstring(dots(entry(asked, found(softmax={0: made}))))
    words = {metric: [text.text for text in root.iter(f"{SVG}text")] for metric, root in drawn.items()}
    head = [line for line in words[long] if line in " ".join(["ours:", title(long)]) and " " in line]
    assert " ".join(head) == f"ours: {title(long)}"
    assert len(head) > 1
    assert max(map(len, head)) <= WIDEST
    assert f"ours: {title(short)}" in words[short]
    height = {metric: float(root.attrib["viewBox"].split()[3]) for metric, root in drawn.items()}
    assert height[long] - height[short] == pytest.approx(LINE * 72 / 96, abs=0.01)
