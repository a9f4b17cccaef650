"""The page of a trial of changed models: does the sink matter?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd

from sinkscope.names import short
from sinkscope.report.page import Headline, Page, Section
from sinkscope.report.trial_page import trial_page
from sinkscope.trials import Trial
from sinkscope.trials.changes import OTHERS, score_of, table

SENTENCE = (
    "What each change costs, in nats a token, on predictions that it reaches. An arm's controls change other keys for "
    "the same queries; the two sides of equal mass are compared with each other. Mass is the mean attention that is "
    "taken from the changed queries. A sink's place afterwards is the position with the largest sink rate among those "
    "that enough queries see; under trimming and folding, by the weights that the layer has before."
)
TITLES = {
    "arm": "arm",
    "nats": "nats lost",
    "nats_low": "nats lost, from",
    "nats_high": "nats lost, to",
    "kl": "KL, nats",
    "controls": "its controls lose",
    "more": "more than they",
    "more_low": "more than they, from",
    "more_high": "more than they, to",
    "mass": "mass",
    "nats_per_mass": "nats for each unit of mass",
    "sink_at": "sink afterwards at",
    "sink_rate": "its rate, %",
    "rate_of_old": "rate of the old place, %",
    "word": "in a word",
}


def changes_page(trial: Trial) -> Page:
    """The page of a trial, with what the sink's arms say besides."""
    record = trial.record
    what = ", ".join(record.get("what", [])) if len(record.get("what", [])) == 1 else "Does the sink matter?"
    page = trial_page(trial, title=f"{what} on {short(record.get('model', 'a model'))}")
    return replace(page, headlines=_headlines(trial), sections=[_section(trial), *page.sections])


def rows(trial: Trial) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of the table on a terminal, intervals in brackets."""
    frame = table(trial)
    heads = [
        "",
        "nats lost (95 %)",
        "KL",
        "its controls",
        "more than they (95 %)",
        "mass",
        "sink afterwards",
        "in a word",
    ]
    found = []
    for row in frame.to_dict("records"):
        place = row.get("sink_at")
        after = "" if place is None or pd.isna(place) else f"{row['sink_rate']:.1f} % at {place:.0f}"
        middle = [_number(row, "nats"), _number(row, "kl", ends=False), _number(row, "controls"), _number(row, "more")]
        found.append([str(row["arm"]), *middle, _number(row, "mass"), after, str(row["word"])])
    kept = [0, *(index for index in range(1, len(heads)) if any(cells[index] for cells in found))]
    return [heads[index] for index in kept], [[cells[index] for index in kept] for cells in found]


def _number(row: dict[Any, Any], name: str, *, ends: bool = True) -> str:
    value, low, high = (row.get(f"{name}{end}") for end in ("", "_low", "_high"))
    if value is None or pd.isna(value):
        return ""
    sign = "" if name in ("kl", "mass") else "+"
    if not ends or low is None or pd.isna(low):
        return f"{value:{sign}.3f}"
    return f"{value:{sign}.3f} ({low:.3f} to {high:.3f})"


def _section(trial: Trial) -> Section:
    frame = table(trial)
    shown = frame[[name for name in TITLES if name in frame]].rename(columns=TITLES)
    return Section("Does it matter", SENTENCE, {}, shown.astype(object).where(pd.notna(shown), None), unfolded=True)


def _headlines(trial: Trial) -> list[Headline]:
    """What the first arms cost, and where the sink is."""
    score = score_of(trial)
    names = [name for name in trial.named("arm") if name != OTHERS][:3]
    cards = [Headline(f"{trial.cost(name, score).value:+.3f}", f"nats a token: {name}") for name in names]
    place = trial.record.get("sink", {}).get("afterwards", {}).get("full")
    if place is not None and place["position"] is not None:
        cards.append(Headline(f"{place['rate']:.1f} %", f"sink rate at position {place['position']}"))
    return cards
