"""A finished survey: its rows as tables, figure and files, and its models compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from sinkscope.files import write_json, write_text
from sinkscope.measurement.comparison import Comparison
from sinkscope.measurement.measurement import Measurement
from sinkscope.measurement.models.rows import COLUMNS, SurveyRow
from sinkscope.measurement.models.store import read_result_record, read_survey
from sinkscope.measurement.models.subjects import MEASUREMENT
from sinkscope.theme import figure, intervals

if TYPE_CHECKING:
    import pandas as pd

SURVEY_JSON, SURVEY_TABLE, SURVEY_MARKDOWN, SURVEY_PAGE = "survey.json", "table.csv", "table.md", "survey.html"


@dataclass(frozen=True)
class Survey:
    """Rows in the order of the spec: by model, then by input. `folder` holds the results."""

    rows: tuple[SurveyRow, ...]
    folder: Path
    epsilon: float

    @property
    def failures(self) -> tuple[SurveyRow, ...]:
        """The rows that failed, each with its reason; skipped ones are not among them."""
        return tuple(row for row in self.rows if row.status == "failed")

    def table(self) -> pd.DataFrame:
        """One row per model and input, one column per field of `SurveyRow`, and one for the sink rate of each stack
        where a model has several.
        """
        import pandas as pd

        stacks = list(dict.fromkeys(rate.stack for row in self.rows for rate in row.stacks))
        lines = [
            {name: getattr(row, name) for name in COLUMNS}
            | {f"sink_rate_{rate.stack}": rate.sink_rate for rate in row.stacks}
            for row in self.rows
        ]
        columns = [*COLUMNS, *(f"sink_rate_{stack}" for stack in stacks)]
        return pd.DataFrame(lines, columns=columns).convert_dtypes()

    def wide(self) -> pd.DataFrame:
        """Models × inputs like Table 1 of Gu et al. 2025: sink rates at position 0 in percent, with intervals.

        A model with several stacks (encoder, decoder, cross-attention, towers) has one line per stack.
        """
        import pandas as pd

        inputs = list(dict.fromkeys(row.input for row in self.rows))
        lines = []
        for label, group in groupby(self.rows, lambda row: row.label):
            rows = list(group)
            size = next((row.parameters for row in rows if row.parameters is not None), None)
            stacks: list[str | None] = list(dict.fromkeys(rate.stack for row in rows for rate in row.stacks))
            for stack in stacks or [None]:
                cells = {row.input: _cell(row, stack) for row in rows}
                name = label if stack is None else f"{label}, {stack}"
                lines.append((name, short_count(size), *(cells.get(kind, "") for kind in inputs)))
        return pd.DataFrame(lines, columns=["model", "parameters", *inputs])

    def pairs(self) -> pd.DataFrame:
        """Models of the same `pair`, per input: the first of the pair with each of the others."""
        import pandas as pd

        lines = []
        rated = [row for row in self.rows if row.pair is not None and row.sink_rate is not None]
        for first in rated:
            group = [row for row in rated if (row.pair, row.input) == (first.pair, first.input)]
            if first is group[0]:
                lines += [
                    (first.pair, first.input, first.label, first.sink_rate, other.label, other.sink_rate)
                    for other in group[1:]
                ]
        frame = pd.DataFrame(lines, columns=["pair", "input", "first", "first_rate", "second", "second_rate"])
        return frame.assign(difference=frame["second_rate"] - frame["first_rate"])

    def plot(self) -> go.Figure:
        """Sink rate at position 0: one group of bars per model, one bar per input, with intervals."""
        return rate_bars(self.rows)

    def comparisons(self) -> Iterator[tuple[str, Comparison]]:
        """Each model compared with the first measured one on the same input, with the name of the input.

        Holds two measurements in memory at a time. Raises `InputError` where a result is gone, or where the two divide
        attention received by different denominators (`compare`).
        """
        for kind in dict.fromkeys(row.input for row in self.rows):
            rows = [row for row in self.rows if row.input == kind and row.results is not None]
            if len(rows) < 2:
                continue
            first = self.measurement(rows[0])
            for row in rows[1:]:
                yield kind, Comparison(first, self.measurement(row), (rows[0].label, row.label))

    def measurement(self, row: SurveyRow) -> Measurement:
        """The measurement of a measured row. Raises `InputError` where it is gone or damaged."""
        assert row.results is not None
        place = self.folder / row.results
        return Measurement.load(place if place.is_file() else place / MEASUREMENT)

    def records(self) -> dict[str, dict[str, Any]]:
        """Where the numbers come from, by model and input: model, what it read, versions. Raises `InputError`."""
        return {
            f"{row.label}, {row.input}": read_result_record(self.folder / row.results)
            for row in self.rows
            if row.results is not None
        }

    def to_json(self) -> dict[str, Any]:
        """Threshold and rows, JSON-able."""
        return {"epsilon": self.epsilon, "rows": [row.to_dict() for row in self.rows]}

    def markdown(self) -> str:
        """`wide` as a Markdown table, and below it the reason for each missing cell."""
        frame = self.wide()
        lines = [frame.columns.tolist(), ["---"] * len(frame.columns), *frame.values.tolist()]
        table = "\n".join(f"| {' | '.join(_markdown(cell) for cell in line)} |" for line in lines)
        missing = [
            f"- {_markdown(row.label)}, {row.input}: {row.status}, {_markdown(row.reason)}"
            for row in self.rows
            if row.status != "measured"
        ]
        title = f"Sink rate at position 0, in percent, threshold {self.epsilon:g}, with 95 % intervals over samples."
        if any(row.slot_mass for row in self.rows):
            title += " Slots: the mean share of attention on learned sinks and key biases, which are no tokens."
        return "\n\n".join([title, table, *(["Not measured:", "\n".join(missing)] if missing else [])]) + "\n"

    def save(self) -> None:
        """Write `survey.json`, `table.csv` and `table.md`, each whole or not at all."""
        write_json(self.folder / SURVEY_JSON, self.to_json())
        write_text(self.folder / SURVEY_TABLE, self.table().to_csv(index=False))
        write_text(self.folder / SURVEY_MARKDOWN, self.markdown())

    @classmethod
    def load(cls, folder: str | Path) -> Survey:
        """Read the folder that `measure_models` wrote. Raises `InputError` where there is no survey in it."""
        epsilon, rows = read_survey(Path(folder) / SURVEY_JSON)
        return cls(rows, Path(folder), epsilon)

    def _repr_html_(self) -> str:
        return self.wide().to_html(index=False, border=0)


def rate_bars(rows: Sequence[SurveyRow]) -> go.Figure:
    """The figure of `Survey.plot`; models without a measurement have no bar."""
    labels = list(dict.fromkeys(row.label for row in rows))
    inputs = list(dict.fromkeys(row.input for row in rows))
    result = figure(height=110 + (12 + 18 * len(inputs)) * len(labels))
    for kind in inputs:
        drawn = [row for row in rows if row.input == kind and row.sink_rate is not None]
        result.add_bar(
            x=[row.sink_rate for row in drawn],
            y=[escape(row.label) for row in drawn],
            orientation="h",
            name=escape(kind),
            error_x=error_bars(drawn),
            hovertemplate="%{y}: %{x:.2f} %<extra>%{fullData.name} input</extra>",
        )
    return result.update_layout(
        showlegend=True,
        barmode="group",
        bargap=0.3,
        xaxis={"title": {"text": "sink rate at position 0 (%)"}, "rangemode": "tozero"},
        yaxis={
            "type": "category",
            "categoryorder": "array",
            "categoryarray": [escape(label) for label in labels],
            "autorange": "reversed",
            "showgrid": False,
        },
    )


def error_bars(rows: Sequence[SurveyRow]) -> dict[str, object]:
    """The error bars of plotly for the intervals of rows."""
    return intervals([row.sink_rate for row in rows], [row.low for row in rows], [row.high for row in rows])


def _cell(row: SurveyRow, stack: str | None) -> str:
    rate = row if stack is None else next((each for each in row.by_stack if each.stack == stack), None)
    if rate is None or rate.sink_rate is None:
        return {"measured": "–", "skipped": row.reason or "", "failed": "failed"}[row.status]
    interval = "" if rate.low is None or rate.high is None else f" [{rate.low:.2f}, {rate.high:.2f}]"
    slots = f"; slots {100 * row.slot_mass:.1f} %" if stack is None and row.slot_mass else ""
    return f"{rate.sink_rate:.2f}{interval}{slots}"


def short_count(parameters: int | None) -> str:
    """14M, 7.2B …; empty where unknown."""
    if parameters is None:
        return ""
    for unit, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if parameters >= unit:
            return f"{parameters / unit:.3g}{letter}"
    return str(parameters)


def _markdown(cell: object) -> str:
    """A cell of a Markdown table, on one line, with its markup escaped: names and errors may hold any."""
    text = " ".join(escape(str(cell), quote=False).split())
    return "".join(f"\\{character}" if character in "|*_`[]\\" else character for character in text)
