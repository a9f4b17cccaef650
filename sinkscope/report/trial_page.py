"""The one result page of every trial, and its table on a terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from sinkscope.report.page import Headline, Page, Section
from sinkscope.report.provenance import joined
from sinkscope.trials import Trial, explained

SENTENCE = (
    "What each arm changes in the model's predictions: KL to the unchanged model, in nats a token, on the same texts, "
    "at places that no arm touches. Bars are 95 % intervals, Student's t over texts. Rings are an arm's random "
    "controls, each with the same budget; an arm that does not lie left of its rings does no more than chance."
)
LOSS = (
    "What each arm adds to the loss of the unchanged model, in nats a token, on the same texts: below 0 it predicts "
    "better. Bars are 95 % intervals, Student's t over texts. Rings are an arm's random controls, each with the same "
    "budget; an arm that does not lie left of its rings does no more than chance."
)
MOST = 12  # arms on a terminal


def trial_page(trial: Trial, *, title: str = "", more: Sequence[Section] = ()) -> Page:
    """The page of a trial: its verdict, a card for each of the first arms, the figure, every number as a table.

    `more`: sections of a kind of trial, after the general ones.
    """
    record = trial.record
    sections = [
        Section(
            "Cost of each arm",
            LOSS if trial.leads == "nats" else SENTENCE,
            {"cost": trial.plot()},
            shown(trial),
            unfolded=True,
        ),
        Section("Each control by itself", "The same numbers with every draw.", {}, shown(trial, full=True)),
        *more,
        Section("What the words mean", explained(trial.tolerance), {}),
    ]
    name = title or f"{record.get('kind', 'trial')} of {record.get('model', 'a model')}"
    versions = record.pop("versions", {})
    facts = {
        "versions": joined(versions.items()),
        "trial": joined((key, _plain(value)) for key, value in record.items()),
    }
    return Page(name, "", headlines(trial), sections, facts, answer=trial.verdict.split(". "))


def headlines(trial: Trial) -> list[Headline]:
    """What an arm gains over its controls at the same budget, largest first; else what it costs."""
    cards = []
    for arm in trial.named("arm"):
        if trial.controls(arm) and trial.word(arm) != "breaks" and "kl" in trial.table():
            gain = trial.difference(arm, score=trial.leads)
            cards.append((gain.value, Headline(f"{-gain.value:+.3f}", f"nats better than random: {arm}")))
    if not cards:
        names = [*trial.named("baseline"), *trial.named("arm")]
        cards = [(0.0, Headline(trial.word(name), name)) for name in names]
    return [card for _, card in sorted(cards, key=lambda card: card[0])[:4]]


def shown(trial: Trial, *, full: bool = False) -> pd.DataFrame:
    """The table under its readers' names, shares in percent; columns that say nothing are left out."""
    frame = trial.table(full=full)
    found = pd.DataFrame({"arm": frame["arm"]})
    for name, title in (("kl", "KL, nats"), ("lost", "nats lost")):
        if name in frame:
            found[title] = frame[name]
            found[f"{title}, from"], found[f"{title}, to"] = frame[f"{name}_low"], frame[f"{name}_high"]
    for name, title in (
        ("agreement", "same token, %"),
        ("recall", "recall, %"),
        ("recall_seen", "recall, question seen, %"),
        ("recovered", "given back, %"),
    ):
        if name in frame and frame[name].notna().any():
            found[title] = 100 * frame[name]
            found[f"{title}, from"], found[f"{title}, to"] = 100 * frame[f"{name}_low"], 100 * frame[f"{name}_high"]
    for name, title, factor in (
        ("controls", "its controls' KL", 1.0),
        ("beats_by", "beats them by", 1.0),
        ("bytes_share", "bytes, %", 100.0),
        ("keys", "keys", 1.0),
        ("step_ratio", "time × full", 1.0),
    ):
        if name in frame and frame[name].notna().any():
            found[title] = factor * frame[name]
            if f"{name}_low" in frame:
                found[f"{title}, from"], found[f"{title}, to"] = frame[f"{name}_low"], frame[f"{name}_high"]
    found["in a word"] = frame.get("word", "")
    return found.where(found.notna(), None)


def rows(trial: Trial) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of the table on a terminal: at most twelve arms, intervals in brackets."""
    frame = trial.table()
    heads = ["", "KL (95 %)", "nats lost (95 %)", "same, %"]
    extra = [name for name in ("recovered", "beats_by", "bytes_share", "recall", "step_ratio") if name in frame]
    extra = [name for name in extra if frame[name].notna().any()]
    titles = {
        "recovered": "given back, %",
        "beats_by": "beats controls by",
        "bytes_share": "bytes, %",
        "recall": "recall, %",
        "step_ratio": "time ×",
    }
    heads += [titles[name] for name in extra] + ["in a word"]
    found = []
    for row in frame.head(MOST + 1).to_dict("records"):
        cells = [str(row["arm"]), _cell(row, "kl"), _cell(row, "lost", sign="+"), _share(row, "agreement", 1)]
        for name in extra:
            if name in ("recovered", "recall"):
                cells.append(_share(row, name, 0, ends=True))
            elif name == "bytes_share":
                cells.append(_share(row, name, 1))
            elif name == "step_ratio":
                cells.append("" if pd.isna(row[name]) else f"{row[name]:.2f}")
            else:
                cells.append(_cell(row, name, sign="+"))
        word = row.get("word")
        found.append([*cells, word if isinstance(word, str) else ""])
    return heads, found


def _cell(row: dict[Any, Any], name: str, sign: str = "") -> str:
    value = row.get(name)
    if value is None or pd.isna(value):
        return ""
    low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
    if low is None or pd.isna(low) or low == high:
        return f"{value:{sign}.3f}"
    return f"{value:{sign}.3f} ({low:.3f} to {high:.3f})"


def _share(row: dict[Any, Any], name: str, digits: int, *, ends: bool = False) -> str:
    value = row.get(name)
    if value is None or pd.isna(value):
        return ""
    said = f"{100 * value:.{digits}f}"
    low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
    if ends and low is not None and high is not None and np.isfinite([low, high]).all() and low != high:
        said += f" ({100 * low:.{digits}f} to {100 * high:.{digits}f})"
    return said


def _plain(value: object) -> str | int | float:
    return value if isinstance(value, str | int | float) else json.dumps(value)
