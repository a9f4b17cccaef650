"""The survey's page: sections that its rows give rise to, equal numbers in figures and tables, text as text."""

from __future__ import annotations

import math

import pytest

from sinkscope.files import write_json
from sinkscope.measurement import LayerRate, Survey, SurveyRow
from sinkscope.report.page import render
from sinkscope.report.survey_page import survey_page

EVIL = "<script>alert(1)</script>"


def row(label: str, kind: str, rate: float, **options: object) -> SurveyRow:
    layers = tuple(LayerRate("decoder", layer, layer / 2, rate + layer) for layer in range(3))
    numbers = {"sink_rate": rate, "low": rate - 1, "high": rate + 1, "layers": 3, "heads": 4, "results": "results/one"}
    return SurveyRow(
        model=label,
        label=label,
        input=kind,
        status="measured",
        by_layer=layers,
        **{**numbers, "parameters": 5, **options},
    )


@pytest.fixture
def survey(tmp_path):
    write_json(tmp_path / "results" / "one" / "row.json", {"record": {"model": "m", "versions": {"torch": "2.13"}}})
    rows = (
        row("base", "natural", 40.0, pair="p"),
        row(f"chat {EVIL}", "natural", 60.0, pair="p", parameters=700),
        row("run, step 5", "natural", 0.0, curve="run", step=5),
        row("run, step 2", "natural", 3.0, curve="run", step=2),
        SurveyRow(model="x", label="x", input="natural", status="failed", reason=f"cannot load {EVIL}"),
    )
    return Survey(rows, tmp_path, 0.3)


def test_a_section_for_everything_there_is(survey):
    page = survey_page(survey)
    assert [section.title for section in page.sections] == [
        "Sink rate, per model and input",
        "Sink rate, by layer",
        "Sink rate and model size",
        "Pairs side by side",
        "Emergence over training",
        "All rows",
    ]
    assert all(section.sentence for section in page.sections)
    assert [card.value for card in page.headlines] == ["4 of 5", "60.0 %", "0.0 %"]
    assert page.provenance["versions"] == "torch 2.13"


def test_the_figures_show_the_rows(survey):
    bars, depth, size, pairs, curve = (next(iter(s.figures.values())) for s in survey_page(survey).sections[:5])
    assert list(bars.data[0].x) == [40.0, 60.0, 0.0, 3.0]
    assert [list(line.y) for line in depth.data[:2]] == [[40.0, 41.0, 42.0], [60.0, 61.0, 62.0]]
    assert list(depth.data[0].x) == [0, 0.5, 1]
    assert list(size.data[0].x) == [5, 700, 5, 5]
    assert [list(trace.x) for trace in pairs.data] == [[40.0, 60.0], [40.0], [60.0]]
    assert (list(curve.data[0].x), list(curve.data[0].y)) == ([2, 5], [3.0, 0.0])
    assert list(curve.data[0].error_y.array) == [1.0, 1.0]


def test_failures_stand_in_the_table_with_their_reason(survey):
    table = survey_page(survey).sections[-1].table
    assert table["reason"].tolist() == ["–"] * 4 + [f"cannot load {EVIL}"]
    assert table["parameters"].tolist() == ["5", "700", "5", "5", "–"]
    assert math.isnan(table["sink rate (%)"].iloc[-1])
    assert "1 of 5 rows could not be measured" in survey_page(survey).sections[-1].sentence


def test_text_is_text(survey):
    assert EVIL not in render(survey_page(survey))


def test_nothing_measured_is_a_page_too(tmp_path):
    rows = (SurveyRow(model="x", label="x", input="natural", status="failed", reason="no"),)
    page = survey_page(Survey(rows, tmp_path, 0.3))
    assert [section.title for section in page.sections] == ["Sink rate, per model and input", "All rows"]
    assert page.headlines[0].label == "of 1 rows measured"
    assert render(page)
