"""Texts of figures stay inside them and do not stand over each other, measured in the font that they name."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import cache
from itertools import combinations, pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

from sinkscope.experiments import Variation, level
from sinkscope.experiments.effects import half_way, metric_gap
from sinkscope_replication.page import page as findings_page
from sinkscope_replication.page.shapes import drawing
from tests_replication.page.test_findings_figures import SVG
from tests_replication.page.test_findings_shapes import made

FONT = FontProperties(family="DejaVu Sans")
TOUCH = 0.6  # units of the file by which two texts may reach into each other
LONG = [f"a label that is as long as some are, {index}" for index in range(6)]


@cache
def width(words: str, size: float) -> float:
    return float(TextPath((0, 0), words, size=size, prop=FONT).get_extents().x1)


def box(text: ElementTree.Element) -> np.ndarray:
    """The corners of a text, in the units of the file."""
    style, turned = text.attrib.get("style", ""), text.attrib.get("transform", "")
    size = float(re.search(r"([\d.]+)px", style)[1])
    wide = width(text.text, size)
    anchor = re.search(r"text-anchor:\s*(\w+)", style)
    left = {"start": 0.0, "middle": -wide / 2, "end": -wide}[anchor[1] if anchor else "start"]
    x, y = (float(text.attrib.get(name, 0)) for name in "xy")
    corners = np.array([[x + left + along, y + up] for along, up in
                        ((0, -0.75 * size), (wide, -0.75 * size), (wide, 0.2 * size), (0, 0.2 * size))])  # fmt: skip
    moved = re.search(r"translate\(([-\d.]+)[ ,]+([-\d.]+)\)", turned)
    angle = re.search(r"rotate\(([-\d.]+)(?:[ ,]+([-\d.]+)[ ,]+([-\d.]+))?\)", turned)
    turn = math.radians(float(angle[1])) if angle else 0.0
    about = np.array([float(angle[2]), float(angle[3])]) if angle and angle[2] else np.zeros(2)
    matrix = np.array([[math.cos(turn), math.sin(turn)], [-math.sin(turn), math.cos(turn)]])
    return (corners - about) @ matrix + about + ([float(moved[1]), float(moved[2])] if moved else np.zeros(2))


def meet(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two rectangles overlap: no line along one of their sides parts them."""
    for corners in (one, other):
        for start, end in pairwise(corners[:3]):
            side = (end - start) / (np.linalg.norm(end - start) or 1.0)
            a, b = one @ [-side[1], side[0]], other @ [-side[1], side[0]]
            if min(a.max(), b.max()) - max(a.min(), b.min()) < TOUCH:
                return False
    return True


def faults(figure: str) -> Iterator[str]:
    root = ElementTree.fromstring(figure)
    wide, tall = map(float, root.attrib["viewBox"].split()[2:])
    texts = [(text.text, box(text)) for text in root.iter(f"{SVG}text") if (text.text or "").strip()]
    for words, corners in texts:
        if corners.min() < 0 or corners[:, 0].max() > wide or corners[:, 1].max() > tall:
            yield f"'{words}' reaches over the edge"
    for (words, corners), (others, beside) in combinations(texts, 2):
        if meet(corners, beside):
            yield f"'{words}' and '{others}' stand over each other"


def svg(*texts: str) -> str:
    return f'<svg xmlns="{SVG[1:-1]}" viewBox="0 0 100 50">{"".join(texts)}</svg>'


def test_faults_are_found():
    def text(x, y, more=""):
        return f'<text style="font: 10px sans-serif{more}" x="{x}" y="{y}">words</text>'

    assert list(faults(svg(text(5, 20), text(5, 40)))) == []
    assert list(faults(svg(text(5, 49)))) == ["'words' reaches over the edge"]
    assert list(faults(svg(text(90, 20)))) == ["'words' reaches over the edge"]
    assert list(faults(svg(text(95, 20, "; text-anchor: end")))) == []
    assert list(faults(svg(text(5, 20), text(20, 24)))) == ["'words' and 'words' stand over each other"]
    turned = text(95, 10, "; text-anchor: end").replace("<text", '<text transform="rotate(-90 95 10)"')
    assert list(faults(svg(turned))) == []


@pytest.mark.parametrize("kind", ["dots", "doses", "time", "readings", "rows"])
def test_long_labels_have_room(kind):
    plain = [Variation(label, {}, {"sink_0": 18.2}) for label in LONG]
    if kind == "dots":
        asked = made(level("sink_mass", LONG[0]), *plain, sink_mass=5.0, sink_0=8.0)
    elif kind == "doses":
        doses = [Variation(label, {"optimizer.lr": 0.1 * (at + 1)}, {"sink_0": 9.0}) for at, label in enumerate(LONG)]
        asked = made(level("sink_mass", LONG[0]), *doses, sink_mass=5.0, sink_0=8.0)
    elif kind == "time":
        asked = made(lambda runs: half_way(runs[LONG[0]], "sink/position_0"), *plain)
    else:
        ways = ["tokens=32", "tokens=64"] if kind == "readings" else ["swapped=4", "replaced=4"]
        metrics = [f"sink_mass/{way}" for way in ways]
        asked = made(metric_gap(LONG[0], *metrics), *plain, **dict.fromkeys(metrics, 1.0))
    assert list(faults(drawing(asked))) == []


@pytest.mark.release
def test_texts_of_the_committed_records_have_room():
    for name, figure in findings_page.figures(findings_page.entries()).items():
        assert list(faults(figure)) == [], name
