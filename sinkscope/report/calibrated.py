"""What the page of a calibration has beyond that of every trial: heads, where they were chosen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from sinkscope.names import short
from sinkscope.report.page import Headline, Page, Section
from sinkscope.report.provenance import joined
from sinkscope.theme import figure
from sinkscope.trials import StoredChoice, Trial

ON_HEADS = (
    "Each head by itself, on the texts to choose on: by how much the objective gets smaller with the chosen setting in "
    "this head alone. Blue heads gain. {how} None of these texts is among those that arms are scored on."
)


def heads_sections(trial: Trial) -> list[Section]:
    """The gains of single heads under the chosen setting; empty for trials in which no heads were chosen."""
    about = trial.record.get("calibration", {})
    if "gain" not in trial.data:
        return []
    gains, estimated = (trial.data[name].sel(option=about["option"]).values for name in ("gain", "estimated"))
    passes = int(np.isfinite(gains).sum())
    how = f"{passes} heads had a pass of their own; the others are estimated from derivatives."
    how = how if np.isfinite(estimated).any() else "Each had a pass of its own."
    name = f"Heads, where they were chosen ({about['option']})"
    values = np.where(np.isfinite(gains), gains, estimated)
    return [Section(name, ON_HEADS.format(how=how), {"heads": heads_figure(values, about["objective"])})]


def heads_figure(values: np.ndarray, objective: str) -> go.Figure:
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


def stored_page(choice: StoredChoice, about: Mapping[str, Any]) -> Page:
    """The page of a choice that was stored before calibrations were trials: its table."""
    said = "Nats a token against no calibration, 95 %, Student's t over texts; `chosen_on`: where it was chosen."
    title = f"{about.get('method', 'calibration')} on {short(about.get('model', 'a model'))}"
    record = (
        (name, value if isinstance(value, str | int) else json.dumps(value)) for name, value in choice.record.items()
    )
    facts = {name: str(value) for name, value in about.items()} | {"choice": joined(record)}
    cards = [Headline(str(len(choice.heads)), "heads chosen")]
    return Page(title, choice.verdict, cards, [Section("Texts held out", said, {}, choice.table(), True)], facts)
