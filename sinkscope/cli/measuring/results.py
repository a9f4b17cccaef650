"""What `sinkscope measure` leaves behind of one input: tables and files."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from rich.text import Text

from sinkscope.cli.measuring.folders import old_files
from sinkscope.files import replacing
from sinkscope.measurement import HEAD_METRICS, Measurement, TokenView
from sinkscope.measurement.rates import warn_if_short
from sinkscope.measurement.summary import summary
from sinkscope.measurement.tables import write_tables
from sinkscope.pictures import write_figure
from sinkscope.report.observatory import HeadMaps, observatory_page
from sinkscope.report.page import write_page
from sinkscope.report.terminal import plain, show, table

SHOWN = 8  # rows of a table of tokens on the terminal
HEADS = 5  # columns of the table of heads


def write_results(
    measured: Measurement,
    folder: Path,
    title: str,
    epsilon: float,
    maps: HeadMaps,
    map_command: str,
    intervene: str,
    form: str = "csv",
    figure: str | None = None,
) -> list[Path]:
    """The measurement, its tables, the page and a static figure, in the place of an earlier measurement's; where they
    are."""
    tables = measured.tables(epsilon)
    page = observatory_page(
        measured,
        f"Attention sink of {title}",
        epsilon,
        maps,
        definitions=tables["definitions"],
        tokens=tables.get("tokens"),
        map_command=map_command,
        intervene=intervene,
    )
    with replacing(folder, partial(old_files, "measure")) as draft:
        measured.save(draft / "measurement.nc")
        written = write_tables(tables, draft, form)
        write_page(page, draft / "figure.html")
        if figure is not None:
            write_figure(measured.plot(epsilon=epsilon), draft / f"figure.{figure}")
    static = [] if figure is None else [f"figure.{figure}"]
    return [folder / name for name in ("measurement.nc", *(path.name for path in written), "figure.html", *static)]


def show_results(measured: Measurement, title: str, epsilon: float, intervene: str, full: bool = False) -> None:
    """The summary; with `full` a row per layer, the definitions and every metric of the strongest heads as well."""
    found = summary(measured, epsilon, intervene=intervene, title=title)
    for number, line in enumerate(found.lines()):
        bold = number < len(found.sentences)
        show(Text.assemble(plain(line), style="bold" if bold else ""))
    warn_if_short(measured.data)
    if measured.record["input"].get("kind") == "first-token":
        _show_first_tokens(measured, epsilon)
    if full:
        _show_tables(measured, epsilon)
    else:
        show(plain("--full shows every layer, definition and metric"))


def _show_tables(measured: Measurement, epsilon: float) -> None:
    _show_layers(measured, epsilon)
    _show_definitions(measured, epsilon)
    _show_heads(measured, epsilon)
    for name, reason in measured.record["not_measured"].items():
        show(plain(f"not measured: {name}: {reason}"))


def _show_layers(measured: Measurement, epsilon: float) -> None:
    frame = measured.table(epsilon)
    several = frame["stack"].nunique() > 1
    rows = [
        (
            f"{row.stack} {row.layer}" if several else row.layer,
            _cell(row.sink_rate, ".1f"),
            _cell(row.low, ".1f", f" – {row.high:.1f}"),
            "–" if pd.isna(row.strongest_position) else f"{row.strongest_position} ({row.strongest_rate:.1f} %)",
            f"{row.hidden_norm_ratio:.2f}",
            f"{row.value_norm_ratio:.2f}" if "value_norm_ratio" in frame else "–",
            *([_cell(100 * row.slot_mass, ".1f")] if "slot_mass" in frame else []),
        )
        for row in frame.itertuples()
    ]
    columns = ("layer", "sink rate, %", "95 % interval", "strongest at", "hidden norm ×", "value norm ×")
    show(table((*columns, "on slots, %") if "slot_mass" in frame else columns, rows))


def _show_definitions(measured: Measurement, epsilon: float) -> None:
    """Those that could be applied; the file has their rules and sources, and the others with what they lack."""
    frame = measured.definitions(epsilon)
    frame = frame[~frame["note"].str.startswith("not observed")]
    several = len(set(measured.data["stack"].values)) > 1
    title = f"definition of a sink{f' ({TokenView(measured.data, epsilon).stack})' if several else ''}"
    rows = [
        (row.definition, _cell(row.sinks, ".2f"), _cell(row.position_0, ".0f", " %"), _cell(row.agreement, ".2f"))
        for row in frame.itertuples()
    ]
    show(table((title, "sinks per sample", "at position 0", "agreement"), rows))
    for remark, doubtful in frame[frame["note"] != ""].groupby("note", sort=False):
        show(plain(f"{', '.join(doubtful['definition'])}: {remark}"))


def _show_heads(measured: Measurement, epsilon: float) -> None:
    """Every metric of the heads that give most to position 0; the file has all heads."""
    frame = measured.heads(epsilon)
    if "alpha" not in frame:
        return
    frame = frame.nlargest(HEADS, "alpha")
    several = len(set(measured.data["stack"].values)) > 1
    names = [
        f"{row.stack} L{row.layer} H{row.head}" if several else f"L{row.layer} H{row.head}"
        for row in frame.itertuples()
    ]
    rows = [(metric.heading(), *map(_cell, frame[metric.name])) for metric in HEAD_METRICS if metric.name in frame]
    show(table(("strongest heads at position 0", *names), rows))


def _cell(value: Any, form: str = ".3g", unit: str = "") -> str:
    if pd.isna(value):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:{form}}{unit}" if isinstance(value, float) else str(value)


def _show_first_tokens(measured: Measurement, epsilon: float) -> None:
    """How first tokens differ, and those that become no sink."""
    frame = measured.first_tokens(epsilon)
    quartiles = frame["heads"].quantile([0, 0.25, 0.5, 0.75, 1]).tolist()
    show(plain(f"sink rate over {len(frame)} first tokens, quartiles: {', '.join(f'{q:.1f} %' for q in quartiles)}"))
    frame = frame[frame["becomes_sink"].notna()]
    sinks = frame[frame["becomes_sink"]]
    if 2 * len(sinks) > len(frame):
        show(plain(f"these do not become a sink (rate at most half the median): {_named(frame.drop(sinks.index))}"))
    else:
        show(plain(f"only these become a sink (rate over half the median): {_named(sinks[::-1])}"))


def _named(tokens: pd.DataFrame) -> str:
    """The first tokens of a table, and how many more there are."""
    named = ", ".join(f"{row.token!r} ({row.id})" for row in tokens.head(SHOWN).itertuples())
    return f"{named}{f' and {len(tokens) - SHOWN} more' if len(tokens) > SHOWN else ''}" or "none"
