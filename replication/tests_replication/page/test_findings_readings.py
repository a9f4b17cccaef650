"""Figures of claims that compare readings of one run, or runs at equal loss, and of doses: what stands where."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from sinkscope.experiments import Findings, Observed, Question, Variation, above, level
from sinkscope.experiments.effects import MASS, gap_at_equal_loss, metric_gap, where_trained
from sinkscope.report.experiments import entry
from sinkscope_replication.page.equal_loss import at_loss, compared_of, mean_against_loss
from sinkscope_replication.page.figures import Shown, metrics_of
from sinkscope_replication.page.over_doses import published_dosed
from sinkscope_replication.page.readings import over_lines, over_rows, readings_of
from sinkscope_replication.page.shapes import drawing
from sinkscope_replication.page.told import told
from tests_replication.page.test_findings_figures import circles
from tests_replication.page.test_findings_shapes import made, paths, run, words

LABELS = ("softmax", "sigmoid")


def of(*claims, variations=LABELS, **curves: tuple[float, ...]):
    """Two seeds of each variation; `sigmoid` is half a nat behind in its loss and has half of the mass."""
    runs = {}
    for label in variations:
        share, behind = (1.0, 0.0) if label == "softmax" else (0.5, 0.5)
        made_of = {"validation_loss": tuple(loss + behind for loss in (5.0, 4.0, 3.0)), "sink/mass": (0.0, 2.0, 6.0)}
        made_of["sink/mass"] = tuple(share * mass for mass in made_of["sink/mass"])
        metrics = {"loss": 3.0 + behind, "sink_mass": share * 6.0}
        runs[label] = {s: Observed(f"{label}-{s}", "finished", s, metrics, (100, 200, 300), made_of) for s in range(2)}
    asked = tuple(above(0.0, claim, f"claim {place}", "it is so", "Table 6") for place, claim in enumerate(claims))
    question = Question("q", "Is it?", "Table 6", tuple(map(Variation, variations)), asked)
    return entry(question, Findings("q", "nano", 2, runs))


def test_a_claim_knows_what_it_reads_at_equal_loss():
    [judged] = of(gap_at_equal_loss("softmax", "sigmoid", MASS)).claims
    assert judged.at_loss["softmax"][:2] == ("validation_loss", "sink/mass")
    assert judged.curves == {}
    assert of(level("sink_mass", "softmax")).claims[0].at_loss == {}
    assert of(lambda runs: runs["softmax"].curve("sink/mass")[-1]).claims[0].at_loss == {}


def test_claims_at_equal_loss_are_curves_against_the_loss_which_falls_to_the_right():
    asked = of(gap_at_equal_loss("softmax", "sigmoid", MASS))
    assert compared_of(asked) == "sink/mass"
    drawn = drawing(asked)
    [softmax], [sigmoid] = paths(drawn, "ours-0-0"), paths(drawn, "ours-0-1")
    assert softmax[1][0] < softmax[2][0], "losses of 4 and 3"
    middle = (softmax[1][0] + softmax[2][0]) / 2
    assert sigmoid[2][0] == pytest.approx(middle, abs=0.01), "it ends at 3.5"
    assert "validation loss (nats), falling to the right" in words(drawn)
    assert "at 3.5, the least loss that all come to: softmax 6, sigmoid 3." in told(asked)


def test_so_are_claims_that_ask_for_the_loss_of_what_they_read():
    guarded = where_trained(("sigmoid",), "softmax", 1.0, level("sink_mass", "sigmoid"))
    assert compared_of(of(guarded)) == "sink/mass"
    assert compared_of(of(level("sink_mass", "sigmoid"))) == ""
    assert compared_of(of(level("loss", "sigmoid"))) == ""
    later = of(level("sink_mass", "sigmoid"), gap_at_equal_loss("softmax", "sigmoid", MASS))
    assert compared_of(later) == "", "the first claim decides"


def test_a_mean_against_the_loss_is_that_of_both():
    lines = [[(5.0, 1.0), (3.0, 2.0)], [(4.0, 3.0), (2.0, 6.0), (1.0, 9.0)]]
    assert mean_against_loss(lines) == [(4.5, 2.0), (2.5, 4.0)]
    assert at_loss([(4.5, 2.0), (2.5, 4.0)], 3.0) == 4.0
    assert at_loss([(4.5, 2.0)], 3.0) is None


def test_two_losses_of_one_run_are_told_by_their_difference():
    asked = made(
        metric_gap("one", "stream_loss/sinks=0", "stream_loss/sinks=4"),
        Variation("one"),
        **{"stream_loss/sinks=0": 2.85, "stream_loss/sinks=4": 2.8},
    )
    first, *_ = metrics_of(asked)
    assert first == Shown("stream_loss/sinks=0", "stream_loss/sinks=4")
    assert first.of(run(0, **asked.runs[0][1].metrics)) == pytest.approx(0.05)
    assert first.title(asked).endswith("0 first tokens kept minus 4 first tokens kept")
    drawn = drawing(asked)
    assert {"0.05", "2.85"} <= words(drawn)
    assert len(circles(ElementTree.fromstring(drawn), "ours-0")) == 2


MOVED = ("sink_mass/repeated", "sink_mass/replaced=4", "sink_mass_4/swapped=4", "sink_mass/swapped=4")


def moved(published):
    values = dict(zip(MOVED, (2.0, 0.0, 1.0, 0.5), strict=True))
    claims = (
        above(0.0, level("sink_mass", "one"), "there", "there is one", "Table 7"),
        above(0.0, metric_gap("one", *MOVED[:2]), "replaced", "it goes", "Table 7"),
        above(0.0, metric_gap("one", *MOVED[2:]), "swapped", "it moves", "Table 7"),
    )
    runs = {label: {seed: run(seed, sink_mass=1.0, **values) for seed in range(2)} for label in ("one", "two")}
    variations = (Variation("one", {}, published), Variation("two"))
    return entry(Question("q", "Is it?", "Table 7", variations, claims), Findings("q", "nano", 2, runs))


def test_readings_that_most_claims_compare_have_a_row_each_whichever_the_position():
    asked = moved({"sink_mass_4/swapped=4": 57.6, "sink_0": 33.1})
    assert readings_of(asked) == {"sink_mass": ["sink_mass", *MOVED]}
    drawn = drawing(asked)
    assert drawn == over_rows(asked)
    root = ElementTree.fromstring(drawn)
    one, two = circles(root, "ours-0-0"), circles(root, "ours-0-1")
    assert (len(one), len(two), len(circles(root, "published-0"))) == (10, 10, 1)
    assert one[0][1] < two[0][1] < one[2][1], "variations side by side in a row, rows below each other"
    left, right = one[4][0], one[2][0]
    assert (one[6][0] - left) / (right - left) == pytest.approx(0.5, abs=0.01)
    assert circles(root, "published-0")[0][1] == pytest.approx(one[6][1], abs=6), "in the row of what it is of"
    assert "at position 4, position embedding swapped with that of 4 1" in told(asked)
    assert told(asked).endswith("Published: one at position 4, position embedding swapped with that of 4 57.6.")


def test_readings_with_short_names_are_joined():
    names = ("sink_mass/tokens=32", "sink_mass/tokens=64")
    asked = made(metric_gap("one", *names), Variation("one"), **dict.fromkeys(names, 1.0))
    assert drawing(asked) == over_lines(asked)


def test_of_doses_the_first_two_metrics_are_shown_and_what_was_published_beside():
    doses = [Variation(f"{dose:g}", {"optimizer.weight_decay": dose}, {"sink_0": 10 + dose}) for dose in (0, 0.5, 2)]
    asked = made(level("sink_mass", "2"), *doses, sink_mass=2.0, sink_0=8.0)
    assert published_dosed(asked) == Shown("sink_0")
    root = ElementTree.fromstring(drawing(asked))
    assert [len(circles(root, name)) for name in ("ours-0", "ours-1", "published-0")] == [6, 6, 3]
    assert told(asked).count("mean over seeds") == 2
    assert told(asked).endswith("Published: 0 10, 0.5 10.5, 2 12.")
    alone = [replace(each, published={}) if each.label != "0" else each for each in doses]
    assert published_dosed(made(level("sink_mass", "2"), *alone, sink_mass=2.0, sink_0=8.0)) is None


def test_the_line_of_doses_goes_through_what_is_one_of_them_without_saying_so():
    powers = [Variation(f"p = {p:g}", {"attention": {"name": "softmax_power", "p": p}}) for p in (0.25, 0.5, 2.0)]
    asked = made(level("sink_mass", "softmax"), Variation("softmax", {"attention": "softmax"}), *powers, sink_mass=2.0)
    drawn = drawing(asked)
    [line] = paths(drawn, "ours-0.joined-0")
    xs = [x for x, _ in line]
    assert len(xs) == 4
    assert xs[3] - xs[2] == pytest.approx(xs[1] - xs[0], abs=0.01)
    places = sorted({round(x) for x, _ in circles(ElementTree.fromstring(drawn), "ours-0")})
    assert places == [round(x) for x in xs]
    assert {"softmax (1)", "p = 0.25", "p of the p-norm that rows have"} <= words(drawn)


def test_what_is_no_dose_stands_apart():
    decays = [Variation(f"{dose:g}", {"optimizer.weight_decay": dose}) for dose in (0, 0.5, 2)]
    asked = made(level("sink_mass", "2"), Variation("sigmoid", {"attention": "sigmoid"}), *decays, sink_mass=2.0)
    places = sorted({round(x, 2) for x, _ in circles(ElementTree.fromstring(drawing(asked)), "ours-0")})
    assert places[1] - places[0] == pytest.approx(1.5 * (places[2] - places[1]), rel=0.01)
