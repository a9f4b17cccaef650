"""A finished survey: its rows as tables, figure and files."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkscope.files import write_json, write_text
from sinkscope.survey.rows import COLUMNS, Row
from sinkscope.survey.store import read_record, read_survey

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

JSON, CSV, MARKDOWN, PAGE = "survey.json", "table.csv", "table.md", "survey.html"


@dataclass(frozen=True)
class Survey:
    """Rows in the order of the spec: models, and for each its inputs. `folder`: where the results are."""

    rows: tuple[Row, ...]
    folder: Path
    epsilon: float

    @property
    def failures(self) -> tuple[Row, ...]:
        """The rows that could not be measured, each with its reason; skipped ones are not among them."""
        return tuple(row for row in self.rows if row.status == "failed")

    def table(self) -> pd.DataFrame:
        """A row per model and input, a column per field of `Row`, and the sink rate of each stack where a model has
        several.
        """
        import pandas as pd

        stacks = list(dict.fromkeys(at.stack for row in self.rows for at in row.stacks))
        lines = [
            {name: getattr(row, name) for name in COLUMNS}
            | {f"sink_rate_{at.stack}": at.sink_rate for at in row.stacks}
            for row in self.rows
        ]
        columns = [*COLUMNS, *(f"sink_rate_{stack}" for stack in stacks)]
        return pd.DataFrame(lines, columns=columns).convert_dtypes()

    def wide(self) -> pd.DataFrame:
        """Models × inputs like Table 1 of Gu et al. 2025: sink rates at position 0 in percent, with intervals.

        A model with several stacks has a line for each: encoder, decoder, cross-attention, towers.
        """
        import pandas as pd

        inputs = list(dict.fromkeys(row.input for row in self.rows))
        lines = []
        for label, group in groupby(self.rows, lambda row: row.label):
            rows = list(group)
            size = next((row.parameters for row in rows if row.parameters is not None), None)
            stacks: list[str | None] = list(dict.fromkeys(at.stack for row in rows for at in row.stacks))
            for stack in stacks or [None]:
                cells = {row.input: _cell(row, stack) for row in rows}
                name = label if stack is None else f"{label}, {stack}"
                lines.append((name, short_count(size), *(cells.get(kind, "") for kind in inputs)))
        return pd.DataFrame(lines, columns=["model", "parameters", *inputs])

    def pairs(self) -> pd.DataFrame:
        """Models of one pair side by side, per input: the pair's first member against each of the others."""
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
        """Sink rate at position 0 per model and input, with intervals."""
        from sinkscope.survey.drawing import rate_bars

        return rate_bars(self.rows)

    def records(self) -> dict[str, dict[str, Any]]:
        """Where the numbers come from, by model and input: model, what it read, versions. Raises `InputError`."""
        return {
            f"{row.label}, {row.input}": read_record(self.folder / row.results)
            for row in self.rows
            if row.results is not None
        }

    def to_json(self) -> dict[str, Any]:
        """JSON-able: threshold and rows."""
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
        """Write the three files, each whole or not at all."""
        write_json(self.folder / JSON, self.to_json())
        write_text(self.folder / CSV, self.table().to_csv(index=False))
        write_text(self.folder / MARKDOWN, self.markdown())

    @classmethod
    def load(cls, folder: str | Path) -> Survey:
        """A survey's folder, as `survey` left it. Raises `InputError` where there is none."""
        epsilon, rows = read_survey(Path(folder) / JSON)
        return cls(rows, Path(folder), epsilon)

    def _repr_html_(self) -> str:
        return self.wide().to_html(index=False, border=0)


def _cell(row: Row, stack: str | None) -> str:
    at = row if stack is None else next((found for found in row.by_stack if found.stack == stack), None)
    if at is None or at.sink_rate is None:
        return {"measured": "–", "skipped": row.reason or "", "failed": "failed"}[row.status]
    interval = "" if at.low is None or at.high is None else f" [{at.low:.2f}, {at.high:.2f}]"
    slots = f"; slots {100 * row.slot_mass:.1f} %" if stack is None and row.slot_mass else ""
    return f"{at.sink_rate:.2f}{interval}{slots}"


def short_count(parameters: int | None) -> str:
    """14M, 7.2B …; empty where unknown."""
    if parameters is None:
        return ""
    for unit, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if parameters >= unit:
            return f"{parameters / unit:.3g}{letter}"
    return str(parameters)


def _markdown(cell: object) -> str:
    """One line of a Markdown table that is text, whatever a model or an error is called."""
    text = " ".join(escape(str(cell), quote=False).split())
    return "".join(f"\\{character}" if character in "|*_`[]\\" else character for character in text)
