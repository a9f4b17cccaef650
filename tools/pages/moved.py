"""`python -m tools.pages.moved`: the generated part of `docs/corrections.md`: which published numbers moved, and why.

`results/frozen/` holds what commit 6ca3717 said: the numbers of the stored studies in `results/benchmarks/`, timings
left out. The same studies are read again. A number that moved needs a reason in `REASONS`. `--freeze` writes
`results/frozen/` again, which only a release should do. (`python -m sinkscope_replication.frozen` does the same for the
verdicts of the study.)
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from benchmarks.sides import RESULTS
from sinkscope.files import write_text
from tools.pages import ROOT, above, write

PAGE, HEAD = "corrections.md", "## Which numbers moved"
FROZEN = ROOT / "results" / "frozen"
SINCE = "6ca3717"
TIMED = {"s", "tokens/s", "GB", "min", "MB", "x"}
"""Units of figures that depend on the machine."""
STUDIES = ("cache_quality", "calibration", "quantized_cache", "quantized_linear")
"""Stored studies whose details are results, not timings."""
DIGITS = 4
"""Significant digits that are frozen and compared."""

REASONS: Mapping[str, str] = {
    "quantization*": "gone: the tables of nano made way for SmolLM2's (outliers_and_sinks.md)",
    "cache_quality*": "Student's t, no bootstrap; sinks by the one rule, measured in other texts; equal bytes",
    "calibration*": "Student's t, no bootstrap; controls of as many random heads as well",
    "quantized_cache*": "Student's t, no bootstrap",
    "quantized_linear*": "a range is of one text, not of a call; sinks by the one rule (lift, ε = 0.3)",
}
"""Why numbers moved: a pattern of `study: name` (as in a shell), and the reason. The first that fits counts."""

Cell = str | float | None
Rows = Mapping[str, tuple[Cell, ...]]  # by `study: name`


@dataclass(frozen=True)
class Moved:
    """A number that is no longer what it was; `after` is empty where it is gone."""

    key: str
    before: tuple[Cell, ...]
    after: tuple[Cell, ...]

    @property
    def reason(self) -> str:
        """The first reason in `REASONS` that fits; empty without one."""
        return next((reason for pattern, reason in REASONS.items() if fnmatchcase(self.key, pattern)), "")


def studied(folder: Path = RESULTS) -> dict[str, tuple[Cell, ...]]:
    """Each number of the stored studies by `file: path in it`, of figures both sides."""
    rows: dict[str, tuple[Cell, ...]] = {}
    for path in sorted(folder.glob("*.json")):
        stored = json.loads(path.read_text(encoding="utf-8"))
        for figure in stored["figures"]:
            if figure["unit"] not in TIMED:
                rows[f"{path.stem}: {figure['what']}"] = (rounded(figure["side"]), rounded(figure["against"]))
        if path.stem in STUDIES:
            for name, value in leaves(stored.get("details", {})):
                rows[f"{path.stem}: {name}"] = (rounded(value),)
    return rows


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """The numbers in nested data, with their paths; an entry of a list goes by its `arm` or `scheme`."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if "seconds" not in str(key):
                yield from leaves(inner, f"{name}/{key}" if name else str(key))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            label = (
                next((inner[k] for k in ("arm", "scheme") if k in inner), place) if isinstance(inner, dict) else place
            )
            yield from leaves(inner, f"{name}/{label}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, value


def rounded(value: float | None) -> Cell:
    """A number with the digits that are compared; NaN and infinities as text, as JSON has neither."""
    if value is None:
        return None
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else str(value)


def moved(before: Rows, after: Rows) -> list[Moved]:
    """What is not as it was, in the order of the keys."""
    rows = [Moved(key, cells, after.get(key, ())) for key, cells in sorted(before.items())]
    return [row for row in rows if row.before != row.after]


def frozen(name: str) -> dict[str, tuple[Cell, ...]]:
    """The rows of a file of `results/frozen/`."""
    stored = json.loads((FROZEN / f"{name}.json").read_text(encoding="utf-8"))
    return {key: tuple(cells) for key, *cells in stored["rows"]}


def freeze() -> None:
    """Write what today's code says as what was published."""
    head = f'{{"commit": "{SINCE}", "columns": ["number", "value", "against"], "rows": [\n'
    lines = (json.dumps([key, *cells], ensure_ascii=False) for key, cells in sorted(studied().items()))
    write_text(FROZEN / "studies.json", head + ",\n".join(lines) + "\n]}\n")


def pages() -> dict[str, str]:
    """The page, with what moved since it was frozen."""
    studies = moved(frozen("studies"), studied())
    return {PAGE: f"{above(PAGE, HEAD)}{HEAD}\n\n{studies_said(studies)}"}


def studies_said(rows: Sequence[Moved]) -> str:
    """How many numbers of each stored study moved, for each reason, with the largest change."""
    total = len(frozen("studies"))
    if not rows:
        return f"None of the {total} numbers of the stored studies moved.\n"
    grouped: dict[tuple[str, str], list[Moved]] = {}
    for row in rows:
        grouped.setdefault((row.key.partition(":")[0], row.reason), []).append(row)
    counts = Counter(key.partition(":")[0] for key in frozen("studies"))
    lines = []
    for (study, reason), group in grouped.items():
        gone = sum(not row.after for row in group)
        lines.append(f"| {study} | {len(group)} of {counts[study]} | {gone} | {shown(group)} | {reason} |")
    return (
        f"{len(rows)} of the {total} numbers of the stored studies moved.\n\n"
        "| study | moved | of these gone | for example | why |\n|---|---|---|---|---|\n" + "\n".join(lines) + "\n"
    )


def shown(rows: Iterable[Moved]) -> str:
    """The number that moved most, relative to what it was."""
    changes = [(abs(float(a) - float(b)) / (abs(float(a)) or 1), row) for row in rows for a, b in pairs(row)]
    if not changes:
        return "–"
    _, row = max(changes, key=lambda change: change[0])
    before, after = next(pairs(row))
    return f"{cell(row.key.partition(': ')[2])}: {before} → {after}"


def pairs(row: Moved) -> Iterator[tuple[float, float]]:
    """The numbers of a row before and now, those that changed."""
    for a, b in zip(row.before, row.after, strict=False):
        if isinstance(a, float) and isinstance(b, float) and a != b:
            yield a, b


def cell(value: Cell) -> str:
    """Text that a cell of a Markdown table can hold."""
    return " ".join(str(value).replace("|", "\\|").split())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--freeze", action="store_true", help="write results/frozen/ from today's code")
    if parser.parse_args().freeze:
        freeze()
    else:
        write(pages())


if __name__ == "__main__":
    main()
