"""`python -m sinkscope_replication.table [--check]`: fill the table of the README from the records.

With --check it writes nothing and exits with 1 where the table is not what the records say.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from sinkscope.errors import InputError
from sinkscope.experiments import Findings, expected, verdicts
from sinkscope.files import write_text
from sinkscope.statistics.claims import Verdict
from sinkscope_replication.paper import ROWS, Row
from sinkscope_replication.questions import QUESTIONS
from sinkscope_replication.records import RELEASED, findings_of

README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- table: python -m sinkscope_replication.table -->", "<!-- end of the table -->"
HEAD = ("the paper says", "place", "published", "ours", "n", "grade")
PERCENT = ("sink", "slot", "strongest")
WITHOUT_UNIT = ("strongest_position",)


def table(rows: Sequence[Row] = ROWS) -> str:
    """The table as Markdown, with how many rows have each grade."""
    lines = [f"| {' | '.join(HEAD)} |", "|---|---|---|---|---|---|"]
    return "\n".join([*lines, *(f"| {' | '.join(cells(row))} |" for row in rows)])


def cells(row: Row) -> tuple[str, ...]:
    """The cells of a row. Raises `InputError` for a claim that there is not."""
    if not row.claim:
        models = released() if row.released else []
        number = str(len(models)) if models else "–"
        return row.says, row.place, row.published or "–", "; ".join(models) or "–", number, f"open: {row.beyond}"
    name, _, claim = row.claim.partition("/")
    question = QUESTIONS[name]
    findings = findings_of(name)
    verdict = next((each for each in verdicts(question, findings) if each.claim.name == claim), None)
    if verdict is None:
        raise InputError(f"row '{row.says}': experiment '{name}' has no claim '{claim}'")
    n = " and ".join(map(str, verdict.n)) if any(verdict.n) else "–"
    return row.says, row.place, row.published or "–", ours(row, verdict, findings), n, grade(row, verdict)


def released() -> list[str]:
    """The sink rate of each released model that was measured, on texts, with its interval over these texts."""
    words = []
    for path in sorted(RELEASED.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        rate = record["parts"]["rate/text"]
        interval = f"{rate['low']:.1f} to {rate['high']:.1f}, {rate['n']} texts"
        words.append(f"{rate['rate']:.1f} % ({interval}) in {record['model'].partition('.')[0]}")
    return words


def ours(row: Row, verdict: Verdict, findings: Findings | None) -> str:
    """Means in the published unit, and what decides: "8.9 and 1.3 %: 13 of 13 against 1 of 6"."""
    means = [mean(findings, label, metric) for label, metric in row.ours] if findings else []
    numbers = [f"{value:.3g}" for value in means if not math.isnan(value)]
    if len(numbers) < len(row.ours):
        return "–"
    words = f"{', '.join(numbers[:-1])} and {numbers[-1]}" if len(numbers) > 1 else numbers[0]
    metric = row.ours[0][1]
    unit = " %" if metric.startswith(PERCENT) and not metric.startswith(WITHOUT_UNIT) else ""
    return f"{words}{unit}: {verdict.found}"


def mean(findings: Findings, label: str, metric: str) -> float:
    """The mean of a metric over the question's runs of a variation; NaN without any."""
    seeds = QUESTIONS[findings.question].seeds_of(label)
    values = [run[metric] for seed, run in findings.runs.get(label, {}).items() if seed in seeds]
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan


def grade(row: Row, verdict: Verdict) -> str:
    """The grade; hours of the missing runs where it is open, and what differs where it was not seen."""
    loss = next((part for part in verdict.reason.split("; ") if part.startswith("losses differ")), "")
    if verdict.grade == "not seen":
        return f"**not seen**: {row.differs}" if row.differs else "**not seen**"
    if verdict.grade != "open":
        return f"**{verdict.grade}**" + (f"; {loss}" if loss else "")
    if verdict.reason.endswith("runs"):
        hours = hours_missing(row.claim.partition("/")[0])
        return f"open: {verdict.reason}" + (f", {hours:.1f} h" if hours else "")
    if verdict.decides_at:
        return f"open: {verdict.decides_at} models each would decide"
    return f"open: {verdict.reason.partition(';')[0]}" if verdict.reason else "open"


@cache
def hours_missing(question: str) -> float:
    """Core-hours of a question's missing runs, by the records of similar ones; 0 where there are none."""
    return (expected(QUESTIONS[question], "nano", findings_of(question), reuse=True).seconds or 0.0) / 3600


def filled(text: str) -> str:
    """The README with today's table. Raises `InputError` where its two marks are gone."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise InputError(f"{README} needs a line {BEGIN} and a line {END}")
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def main(arguments: Sequence[str]) -> int:
    """Fill the README, or with --check compare it; the exit code."""
    text = README.read_text(encoding="utf-8")
    made = filled(text)
    if "--check" in arguments:
        if made != text:
            print(f"{README} is not what the records say: run python -m sinkscope_replication.table")
        return int(made != text)
    write_text(README, made)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
