"""The page of a calibration: what was chosen on some texts, and what it does to others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pandas as pd

from sinkscope.calibration import Choice
from sinkscope.calibration.choosing import ALL, CHOSEN
from sinkscope.calibration.figures import ARMS, HEADS, of_arms, of_heads
from sinkscope.report.page import Headline, Page, Section
from sinkscope.report.provenance import joined

COLUMNS = {
    "arm": "",
    "control": "control",
    "loss": "loss held out (nats)",
    "chosen_on": "difference where chosen",
    "held_out": "difference held out",
    "low": "95 % from",
    "high": "95 % to",
    "right": "right tokens (%)",
    "entropy": "entropy (nats)",
}
SENTENCE = (
    "Heads and setting were chosen on the first part of the texts; the points are of the others, in nats a token "
    "against no calibration, with 95 % bootstrap intervals over texts. Rings are of the texts that it was chosen on, "
    "where every choice looks better than it is. Controls spend the same budget elsewhere."
)
ON_HEADS = (
    "Each head by itself, on the texts to choose on: by how much the objective got smaller with the chosen setting in "
    "this head alone. Blue heads were taken."
)


def calibration_page(choice: Choice, summary: Mapping[str, Any]) -> Page:
    """The page of one choice; `summary` is what is stored as JSON (`model`, `method`, `input`)."""
    was = choice.intervention is not None
    held = choice.difference(CHOSEN if was else ALL)
    headlines = [Headline(f"{held.value:+.4f}", f"nats held out, {choice.option} in {'its' if was else 'all'} heads")]
    if choice.heads or not was:
        headlines.append(Headline(str(len(choice.heads)), "heads chosen"))
    sections = [Section(ARMS, SENTENCE, {ARMS: of_arms(choice.table())}, shown(choice), unfolded=True)]
    if gains := choice.gains.get(choice.option):
        sections.append(Section(HEADS, ON_HEADS, {HEADS: of_heads(gains)}))
    facts = {name: str(summary[name]) for name in ("model", "method", "input") if name in summary}
    plain = {
        name: value if isinstance(value, str | int) else json.dumps(value) for name, value in choice.record.items()
    }
    facts |= {"objective": choice.objective, "choice": joined(plain.items())}
    return Page(f"{summary['method']} on {summary['model']}", choice.verdict, headlines, sections, facts)


def shown(choice: Choice) -> pd.DataFrame:
    """The table under its readers' names."""
    frame = choice.table()
    frame["right"] *= 100
    frame["control"] = ["control" if control else "" for control in frame["control"]]
    return frame.rename(columns=COLUMNS)
