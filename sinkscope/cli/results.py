"""What `sinkscope measure` leaves behind: a table on the terminal and three files."""

from __future__ import annotations

from pathlib import Path

from rich.text import Text

from sinkscope.files import write_text
from sinkscope.probes import Measurement
from sinkscope.report.compose import results_page
from sinkscope.report.page import write_page
from sinkscope.report.rates import rate_at
from sinkscope.report.terminal import plain, show, table

FILES = ("measurement.nc", "table.csv", "figure.html")


def write_results(measured: Measurement, folder: Path, title: str, epsilon: float) -> None:
    """The three files, each whole or absent."""
    page = results_page(f"Attention sink of {title}", [], {title: measured}, epsilon)
    measured.save(folder / FILES[0])
    write_text(folder / FILES[1], measured.table(epsilon).to_csv(index=False))
    write_page(page, folder / FILES[2])


def show_results(measured: Measurement, title: str, epsilon: float) -> None:
    """A row per layer, then the finding in a sentence."""
    frame = measured.table(epsilon)
    several = frame["stack"].nunique() > 1
    rows = [
        (
            f"{row.stack} {row.layer}" if several else row.layer,
            f"{row.sink_rate:.1f}",
            f"{row.low:.1f} – {row.high:.1f}",
            f"{row.strongest_position} ({row.strongest_rate:.1f} %)",
            f"{row.hidden_norm_ratio:.2f}",
            f"{row.value_norm_ratio:.2f}",
        )
        for row in frame.itertuples()
    ]
    columns = ("layer", "sink rate, %", "95 % interval", "strongest at", "hidden norm ×", "value norm ×")
    show(table(columns, rows))
    rate, interval = measured.sink_rate(epsilon, 0), rate_at(measured.data, epsilon)
    sentence = (
        f"{title}: position 0 receives over {epsilon:g} of the attention in {rate:.1f} % of (layer, head) pairs "
        f"(95 % interval {interval.low:.1f} to {interval.high:.1f})."
    )
    show(Text.assemble(plain(sentence), style="bold"))
