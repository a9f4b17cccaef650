"""The page of an intervention beside its controls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sinkscope.interventions import Effect
from sinkscope.report.page import Headline, Page, Section


def effect_page(effect: Effect, summary: Mapping[str, Any]) -> Page:
    """The page of one effect; `summary` is what is stored as JSON (`what`, `found`, `model`, `input`)."""
    before, after = effect.untouched, effect.touched
    headlines = [Headline(f"{before.sink_rate:.1f} → {after.sink_rate:.1f} %", f"sink rate at {effect.position}")]
    if before.loss is not None and after.loss is not None:
        headlines.append(Headline(f"{before.loss:.3f} → {after.loss:.3f}", "loss, nats"))
    headlines.append(Headline(f"{after.kl:.4f}", "KL to the untouched model, nats"))
    sentence = (
        "Each control spends the same budget elsewhere: as many entries, heads, tokens or directions, drawn at random. "
        "The band is their range; an effect counts where it leaves it."
    )
    table = effect.table().rename(columns=lambda name: name.replace("_", " "))
    table["stands out"] = ["yes" if value else "no" for value in table["stands out"]]
    section = Section("The intervention beside its controls", sentence, {"effect": effect.plot()}, table, unfolded=True)
    facts = {name: str(summary[name]) for name in ("model", "input", "what", "found")}
    facts["size"] = f"{effect.samples} samples of {effect.tokens} tokens, {len(effect.controls)} controls"
    return Page(f"{summary['what']} on {summary['model']}", effect.verdict, headlines, [section], facts)
