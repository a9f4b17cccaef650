"""The result page of every trial, and its table on a terminal. A trial's record decides what its kind adds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from sinkscope.names import short
from sinkscope.quantization import Hazards
from sinkscope.report.hazards_page import hazards_sections
from sinkscope.report.page import Headline, Page, Section
from sinkscope.report.provenance import joined, recorded
from sinkscope.theme import figure
from sinkscope.trials import StoredChoice, Trial, explained
from sinkscope.trials.changes import OTHERS, score_of, table
from sinkscope.trials.figure import against_bytes
from sinkscope.trials.origin import MAKES
from sinkscope.trials.origin import table as origin_table

COST = (
    "What each arm changes in the model's predictions: KL to the unchanged model, in nats per token, on the same "
    "texts, at places that no arm touches. Bars are 95 % intervals, Student's t over texts. Rings are an arm's random "
    "controls, each with the same budget; an arm that is not left of its rings does no better than chance."
)
LOSS = (
    "What each arm adds to the loss of the unchanged model, in nats per token, on the same texts: below 0 it predicts "
    "better. Bars are 95 % intervals, Student's t over texts. Rings are an arm's random controls, each with the same "
    "budget; an arm that is not left of its rings does no better than chance."
)
CHANGES = (
    "What each change costs, in nats per token, on predictions that it reaches. An arm's controls change other keys "
    "for the same queries; the two sides of equal mass are compared with each other. Mass is the mean attention that "
    "is taken from the changed queries. The place of a sink afterwards is the position with the largest sink rate "
    "among those that enough queries see; under trimming and folding, by the weights that the layer has before."
)
ORIGIN = (
    "What makes the sink: tests that would make one elsewhere, and tests that take it away, each with controls of the "
    "same size. The rate there is that of the place which a test looks at (of the old place for tests that take "
    "something away); the largest rate is among positions that enough queries see. In percent of the heads."
)
HEADS = (
    "The decrease of the objective with the chosen setting in one head alone, on the texts that heads were chosen on. "
    "Blue heads gain. {passes} None of these texts is among those that arms are scored on."
)
MOST_ARMS = 12  # on a terminal

COLUMNS = (  # of `Trial.table`: name, what readers see, factor
    ("kl", "KL, nats", 1.0),
    ("lost", "nats lost", 1.0),
    ("agreement", "same token, %", 100.0),
    ("recall", "recall, %", 100.0),
    ("recall_seen", "recall, question seen, %", 100.0),
    ("recovered", "given back, %", 100.0),
    ("controls", "its controls' KL", 1.0),
    ("beats_by", "beats them by", 1.0),
    ("bytes_share", "bytes, %", 100.0),
    ("keys", "keys", 1.0),
    ("step_ratio", "time × full", 1.0),
)
TERMINAL = {
    "recovered": "given back, %",
    "beats_by": "beats controls by",
    "bytes_share": "bytes, %",
    "recall": "recall, %",
    "step_ratio": "time ×",
}
ORIGIN_COLUMNS = {  # of `trials.origin.table`
    "arm": "test",
    "nats": "nats lost",
    "nats_low": "nats lost, from",
    "nats_high": "nats lost, to",
    "kl": "KL, nats",
    "controls": "its controls lose",
    "rate_at_sink": "rate at the sink, %",
    "rate_at_test": "rate at the tested place, %",
    "rate_of_controls": "rate there under its controls, %",
    "sink_at": "largest rate at",
    "sink_rate": "largest rate, %",
    "word": "finding",
}
CHANGE_COLUMNS = {  # of `trials.changes.table`
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


def trial_page(trial: Trial, *, hazards: Hazards | None = None) -> Page:
    """The page of a trial: its verdict, a card for each of the first arms, the figure, every number as a table.

    `hazards`: the hazards of quantization that the same run measured.
    """
    record = trial.record
    sections = [
        *([_named_section("Does it matter", CHANGES, table(trial), CHANGE_COLUMNS)] if _of_changes(trial) else []),
        *([_named_section("What makes it", ORIGIN, origin_table(trial), ORIGIN_COLUMNS)] if _of_origin(trial) else []),
        Section(
            "Cost of each arm",
            LOSS if trial.leads == "nats" else COST,
            {"cost": trial.plot()},
            shown(trial),
            unfolded=True,
        ),
        Section("Each control", "The same numbers for every draw of the controls.", {}, shown(trial, full=True)),
        *_bytes_sections(trial),
        *heads_sections(trial),
        *([] if hazards is None else hazards_sections(hazards)),
        Section("What the words mean", explained(trial.tolerance), {}),
    ]
    facts = {"versions": joined(record.pop("versions", {}).items()), "trial": recorded(record)}
    return Page(title_of(trial), "", headlines(trial), sections, facts, answer=re.split(r"(?<=\.) ", trial.verdict))


def title_of(trial: Trial) -> str:
    """What was tried on which model."""
    record = trial.record
    kind, model = record.get("kind", "trial"), short(str(record.get("model", "a model")))
    if kind == "changes":
        what = record.get("what", [])
        return f"{what[0]} on {model}" if len(what) == 1 else f"Does the sink of {model} matter?"
    if kind == "origin":
        return f"What makes the sink of {model}?"
    if kind == "eviction":
        return f"Caches of {model}"
    tried = record.get("scheme", record.get("method"))
    return f"{kind} of {model}" if tried is None else f"{tried} on {model}"


def headlines(trial: Trial) -> list[Headline]:
    """The gains of arms over their controls at the same budget, largest first; without controls, the words.

    For changes: the cost of the first arms, and the position of the sink.
    """
    if _of_changes(trial):
        return _change_headlines(trial)
    cards, has_kl = [], "kl" in trial.data
    for arm in trial.named("arm"):
        if has_kl and trial.controls(arm) and trial.word(arm) != "breaks":
            gain = trial.difference(arm, score=trial.leads)
            cards.append((gain.value, Headline(f"{-gain.value:+.3f}", f"nats better than random: {arm}")))
    if not cards:
        names = [*trial.named("baseline"), *trial.named("arm")]
        cards = [(0.0, Headline(trial.word(name), name)) for name in names]
    return [card for _, card in sorted(cards, key=lambda card: card[0])[:4]]


def shown(trial: Trial, *, full: bool = False) -> pd.DataFrame:
    """The table under its readers' names, shares in percent; columns without a value are left out."""
    frame = trial.table(full=full)
    columns = pd.DataFrame({"arm": frame["arm"]})
    for name, title, factor in COLUMNS:
        if name not in frame or frame[name].isna().all():
            continue
        columns[title] = factor * frame[name]
        if f"{name}_low" in frame:
            columns[f"{title}, from"] = factor * frame[f"{name}_low"]
            columns[f"{title}, to"] = factor * frame[f"{name}_high"]
    columns["in a word"] = frame.get("word", "")
    return columns.where(columns.notna(), None)


def heads_sections(trial: Trial) -> list[Section]:
    """The gains of single heads under the chosen setting; empty for trials in which no heads were chosen."""
    if "gain" not in trial.data:
        return []
    calibration = trial.record["calibration"]
    gains, estimated = (trial.data[name].sel(option=calibration["option"]).values for name in ("gain", "estimated"))
    passes = "Each had its own pass."
    if np.isfinite(estimated).any():
        count = int(np.isfinite(gains).sum())
        passes = f"{count} heads had their own pass; the others are estimated from derivatives."
    values = np.where(np.isfinite(gains), gains, estimated)
    title = f"Heads, where they were chosen ({calibration['option']})"
    return [Section(title, HEADS.format(passes=passes), {"heads": _head_map(values, calibration["objective"])})]


def choice_page(choice: StoredChoice, about: Mapping[str, Any]) -> Page:
    """The page of a choice that was stored before calibrations were trials: its table."""
    sentence = "Nats per token against no calibration, 95 %, Student's t over texts; `chosen_on`: where it was chosen."
    title = f"{about.get('method', 'calibration')} on {short(about.get('model', 'a model'))}"
    facts = {name: str(value) for name, value in about.items()} | {"choice": recorded(choice.record)}
    cards = [Headline(str(len(choice.heads)), "heads chosen")]
    return Page(title, choice.verdict, cards, [Section("Texts held out", sentence, {}, choice.table(), True)], facts)


def rows(trial: Trial) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of the table on a terminal: at most twelve arms, intervals in brackets."""
    if _of_changes(trial):
        return _change_rows(trial)
    if _of_origin(trial):
        return _origin_rows(trial)
    frame = trial.table()
    extra = [name for name in TERMINAL if name in frame and frame[name].notna().any()]
    heads = ["", "KL (95 %)", "nats lost (95 %)", "same, %", *(TERMINAL[name] for name in extra), "in a word"]
    written = {
        "recovered": lambda row: _share(row, "recovered", 0, ends=True),
        "recall": lambda row: _share(row, "recall", 0, ends=True),
        "bytes_share": lambda row: _share(row, "bytes_share", 1),
        "step_ratio": lambda row: "" if pd.isna(row["step_ratio"]) else f"{row['step_ratio']:.2f}",
        "beats_by": lambda row: _number(row, "beats_by", sign="+"),
    }
    lines = []
    for row in frame.head(MOST_ARMS + 1).to_dict("records"):
        cells = [str(row["arm"]), _number(row, "kl"), _number(row, "lost", sign="+"), _share(row, "agreement", 1)]
        word = row.get("word")
        lines.append([*cells, *(written[name](row) for name in extra), word if isinstance(word, str) else ""])
    return heads, lines


def _of_changes(trial: Trial) -> bool:
    return trial.record.get("kind") == "changes"


def _of_origin(trial: Trial) -> bool:
    return trial.record.get("kind") == "origin"


def _named_section(title: str, sentence: str, frame: pd.DataFrame, names: Mapping[str, str]) -> Section:
    """A table under its readers' names."""
    columns = frame[[name for name in names if name in frame]].rename(columns=names)
    plain_columns = columns.astype(object).where(pd.notna(columns), None)
    return Section(title, sentence, {}, plain_columns, unfolded=True)


def _change_headlines(trial: Trial) -> list[Headline]:
    score = score_of(trial)
    names = [name for name in trial.named("arm") if name != OTHERS][:3]
    cards = [Headline(f"{trial.cost(name, score).value:+.3f}", f"nats per token: {name}") for name in names]
    place = trial.record.get("sink", {}).get("afterwards", {}).get("full")
    if place is not None and place["position"] is not None:
        cards.append(Headline(f"{place['rate']:.1f} %", f"sink rate at position {place['position']}"))
    return cards


def _change_rows(trial: Trial) -> tuple[list[str], list[list[str]]]:
    """As `rows`; columns that are empty in every row are left out."""
    columns = (
        "nats lost (95 %)",
        "KL",
        "its controls",
        "more than they (95 %)",
        "mass",
        "sink afterwards",
        "in a word",
    )
    heads = ["", *columns]
    lines = []
    for row in table(trial).to_dict("records"):
        place = row.get("sink_at")
        lines.append(
            [
                str(row["arm"]),
                _number(row, "nats", sign="+"),
                _number(row, "kl", ends=False),
                _number(row, "controls", sign="+"),
                _number(row, "more", sign="+"),
                _number(row, "mass"),
                "" if place is None or pd.isna(place) else f"{row['sink_rate']:.1f} % at {place:.0f}",
                str(row["word"]),
            ]
        )
    kept = [index for index in range(len(heads)) if not index or any(cells[index] for cells in lines)]
    return [heads[index] for index in kept], [[cells[index] for index in kept] for cells in lines]


def _origin_rows(trial: Trial) -> tuple[list[str], list[list[str]]]:
    """As `rows`; the rates of a test are those where it looks: at k, or at the sink."""
    heads = ["", "nats lost (95 %)", "KL", "its controls", "rate there, %", "under controls", "largest rate", "finding"]
    lines = []
    for row in origin_table(trial).to_dict("records"):
        looked = "rate_at_test" if row["arm"] in MAKES else "rate_at_sink"
        place, rate = row["sink_at"], row["sink_rate"]
        cells = [_number(row, "nats", sign="+"), _number(row, "kl", ends=False), _number(row, "controls", sign="+")]
        rates = [f"{row[looked]:.1f} ({row[f'{looked}_low']:.1f} to {row[f'{looked}_high']:.1f})"]
        under = row.get("rate_of_controls")
        rates += ["" if under is None or pd.isna(under) else f"{under:.1f}"]
        where = "" if place is None or pd.isna(place) else f"{rate:.1f} % at {place:.0f}"
        lines.append([str(row["arm"]), *cells, *rates, where, str(row["word"])])
    return heads, lines


def _bytes_sections(trial: Trial) -> list[Section]:
    """Cost against bytes, if a policy of an eviction trial has more than one budget."""
    if trial.record.get("kind") != "eviction":
        return []
    lines = against_bytes(trial.table(full=True), trial.data["series"].to_series())
    sentence = "One line per policy; random controls are thin and dotted."
    return [] if lines is None else [Section("Cost against bytes", sentence, {"bytes": lines})]


def _head_map(values: np.ndarray, objective: str) -> go.Figure:
    """A map over (layer, head); NaN for heads that were not tried."""
    largest = float(np.nanmax(np.abs(values), initial=0.0)) or 1.0
    layers, heads = values.shape
    scale = {"zmin": -largest, "zmax": largest, "colorscale": "RdBu", "colorbar": {"title": {"text": objective}}}
    result = figure(height=140 + 28 * layers, legend=False)
    known = [[None if np.isnan(value) else float(value) for value in row] for row in values]
    result.add_heatmap(z=known, x=list(range(heads)), y=list(range(layers)), **scale)
    return result.update_layout(
        xaxis={"title": {"text": "head"}, "dtick": 1}, yaxis={"title": {"text": "layer"}, "dtick": 1}
    )


def _number(row: Mapping[Any, Any], name: str, *, sign: str = "", ends: bool = True) -> str:
    """A value with its interval in brackets; empty if it is not known."""
    value, low, high = (row.get(f"{name}{end}") for end in ("", "_low", "_high"))
    if value is None or pd.isna(value):
        return ""
    if not ends or low is None or pd.isna(low) or low == high:
        return f"{value:{sign}.3f}"
    return f"{value:{sign}.3f} ({low:.3f} to {high:.3f})"


def _share(row: Mapping[Any, Any], name: str, digits: int, *, ends: bool = False) -> str:
    """A share in percent, with its interval if `ends`."""
    value, low, high = (row.get(f"{name}{end}") for end in ("", "_low", "_high"))
    if value is None or pd.isna(value):
        return ""
    text = f"{100 * value:.{digits}f}"
    if ends and low is not None and high is not None and np.isfinite([low, high]).all() and low != high:
        text += f" ({100 * low:.{digits}f} to {100 * high:.{digits}f})"
    return text
