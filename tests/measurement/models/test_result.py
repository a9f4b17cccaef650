"""Tables, pairs and the figure of rows made by hand."""

from __future__ import annotations

import pytest

from sinkscope.errors import InputError
from sinkscope.measurement import Survey, SurveyRow


def row(label: str, kind: str = "natural", rate: float | None = 50.0, **options: object) -> SurveyRow:
    if rate is None:
        return SurveyRow(model=label, label=label, input=kind, status="failed", reason="no | such\n[model]", **options)
    numbers = {"sink_rate": rate, "low": rate - 1, "high": rate + 2, "parameters": 14_000_000}
    return SurveyRow(model=label, label=label, input=kind, status="measured", **{**numbers, **options})


@pytest.fixture
def made(tmp_path):
    rows = (
        row("base", pair="p", rate=92.5),
        row("base", "random", pair="p", rate=90.0),
        row("chat", pair="p", rate=92.9, parameters=7_240_000_000),
        row("chat", "random", pair="p", rate=None),
        row("<i>lone</i>", rate=None),
    )
    return Survey(rows, tmp_path, 0.3)


def test_models_by_inputs(made):
    frame = made.wide()
    assert frame.columns.tolist() == ["model", "parameters", "natural", "random"]
    assert frame.iloc[0].tolist() == ["base", "14M", "92.50 [91.50, 94.50]", "90.00 [89.00, 92.00]"]
    assert frame.iloc[1].tolist() == ["chat", "7.24B", "92.90 [91.90, 94.90]", "failed"]
    assert frame.iloc[2].tolist() == ["<i>lone</i>", "", "failed", ""]


def test_pairs_stand_side_by_side_where_both_were_measured(made):
    frame = made.pairs()
    assert frame[["pair", "input", "first", "second"]].values.tolist() == [["p", "natural", "base", "chat"]]
    assert frame["difference"].tolist() == pytest.approx([0.4])


def test_the_markdown_is_a_table_whatever_things_are_called(made):
    text = made.markdown()
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 5
    assert {line.replace("\\|", "").count("|") for line in table} == {5}
    assert "<i>" not in text
    assert "- chat, random: failed, no \\| such \\[model\\]" in text


def test_saved_and_loaded(made):
    made.save()
    again = Survey.load(made.folder)
    assert again == made
    assert (made.folder / "table.csv").read_text().splitlines()[0].startswith("model,label,input,status,reason")
    assert len((made.folder / "table.md").read_text()) > 100


def test_no_survey_there(tmp_path):
    with pytest.raises(InputError, match="no survey at"):
        Survey.load(tmp_path)
    (tmp_path / "survey.json").write_text('{"epsilon": 0.3, "rows": [{"model": "x"}]}')
    with pytest.raises(InputError, match="is not a survey, or is damaged"):
        Survey.load(tmp_path)


def test_the_figure_has_a_bar_for_what_was_measured(made):
    natural, random = made.plot().data
    assert list(natural.y) == ["base", "chat"]
    assert list(natural.x) == [92.5, 92.9]
    assert list(natural.error_x.array) == pytest.approx([2.0, 2.0])
    assert list(natural.error_x.arrayminus) == pytest.approx([1.0, 1.0])
    assert list(random.y) == ["base"]
    assert "&lt;i&gt;lone" in made.plot().layout.yaxis.categoryarray[-1]


def test_failures_are_named(made):
    assert [(failure.label, failure.input) for failure in made.failures] == [
        ("chat", "random"),
        ("<i>lone</i>", "natural"),
    ]
