"""The page of an intervention beside its controls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sinkscope.interventions import Effect
from sinkscope.interventions.outcome import METRICS
from sinkscope.report.page import Headline, Page, Section
from sinkscope.theme import template


def effect_page(effect: Effect, summary: Mapping[str, Any]) -> Page:
    """The page of one effect; `summary` is what is stored as JSON (`what`, `found`, `model`, `input`, `control`)."""
    before, after = effect.baseline, effect.intervened
    headlines = [Headline(f"{before.sink_rate:.1f} → {after.sink_rate:.1f} %", f"sink rate at {effect.position}")]
    if before.loss is not None and after.loss is not None:
        headlines.append(Headline(f"{before.loss:.3f} → {after.loss:.3f}", "loss, nats"))
    headlines.append(Headline(f"{after.kl:.4f}", "KL to the baseline, nats"))
    sentence = (
        "Each control spends the same budget elsewhere: as many entries, heads, tokens or directions, drawn at random. "
        "The band is their range. An effect counts where it leaves the band and is more than four of the controls' "
        "standard deviations from their mean: above, the intervention does more than chance, below, less."
    )
    table = effect.table().rename(columns=lambda name: name.replace("_", " "))
    table["stands out"] = [said(effect, metric) for metric in METRICS if getattr(after, metric) is not None]
    # The page's title names the intervention and the axis its groups, so that the panels have the room.
    figure = effect.plot().update_layout(template=template(), title=None, showlegend=False, margin={"t": 40})
    figure.update_annotations(font={"size": 13})
    section = Section("The intervention beside its controls", sentence, {"effect": figure}, table, unfolded=True)
    facts = {name: str(summary[name]) for name in ("model", "input", "what", "found", "control") if name in summary}
    facts["size"] = f"{effect.samples} samples of {effect.tokens} tokens, {len(effect.controls)} controls"
    lead = f"Acts on: {summary['found']}. {effect.verdict}"
    return Page(f"{summary['what']} on {summary['model']}", lead, headlines, [section], facts)


def said(effect: Effect, metric: str) -> str:
    """On which side of its controls an effect stands out, or "no"."""
    standing = effect.standing(metric)
    return standing if standing in ("above", "below") else "no"
