"""The figures show every model of the records, and the README shows every figure."""

from __future__ import annotations

import re

import numpy as np
import pytest

from sinkscope_replication import figures
from sinkscope_replication.figures import FIGURES, FOLDER, dots, models, plt


def test_the_readme_shows_every_figure_and_all_are_drawn():
    shown = re.findall(r"\(docs/figures/(\w+)\.svg\)", (FOLDER.parents[1] / "README.md").read_text(encoding="utf-8"))
    assert sorted(shown) == sorted(FIGURES)
    assert {f"{name}.svg" for name in FIGURES} <= {path.name for path in FOLDER.iterdir()}


def test_a_dot_is_a_model_and_the_line_its_mean():
    _, axis = plt.subplots()
    rates = [run["sink_0"] for run in models("fixed-token", "BOS at 0")]
    dots(axis, {"one": rates, "none": []})
    drawn = np.concatenate([each.get_offsets()[:, 1] for each in axis.collections])
    assert sorted(drawn) == pytest.approx(sorted(rates))
    assert len(rates) == 13
    assert [line.get_ydata()[0] for line in axis.lines] == pytest.approx([np.mean(rates)])
    assert [label.get_text() for label in axis.get_xticklabels()] == ["one", "none"]
    plt.close("all")


def test_no_dot_is_cut_off(monkeypatch):
    for name in ("architecture", "normalization"):
        figure = FIGURES[name]()
        for axis in figure.axes:
            top = max(float(each.get_offsets()[:, 1].max()) for each in axis.collections if len(each.get_offsets()))
            assert axis.get_ylim()[1] >= top
        figures.plt.close(figure)
