"""The page of quantizing a model: what it costs, what sparing tokens gives back, and where ranges are set by a few."""

from __future__ import annotations

import json

import pandas as pd

from sinkscope.quantization import Hazards, Study
from sinkscope.report.page import Headline, Page, Section
from sinkscope.report.provenance import joined

COST = {"loss": "nats lost", "kl": "KL, nats"}
SENTENCE = (
    "How many nats a token each arm predicts worse than the full model, on the same texts, at tokens that no arm "
    "spares; bars are 95 % bootstrap intervals over texts. The dashed line is everything quantized. A choice of tokens "
    "is worth something where it lies left of that line, and of the random choices of the same budget."
)
SITES = (
    "Where a quantizer needs a range: the largest token in medians of the tokens, with the spared tokens and without "
    "them; bits lost is how many bits of a range for all tokens the spared ones take from the others; the channel "
    "column is the largest channel in medians of the channels, which no spared token changes."
)
CASTS = (
    "Shares of attention weights that a cast to 8-bit floating point (e4m3) makes 0. Kernels walk forward or backward "
    "over blocks of 64 keys, and multiply by 256 before the cast or not. Mass is the attention that is lost."
)


def quantization_page(model: str, study: Study | None, hazards: Hazards | None) -> Page:
    """The page of a study, of hazards, or of both."""
    sections: list[Section] = []
    headlines: list[Headline] = []
    facts: dict[str, str] = {}
    if study is not None:
        sections.append(Section("Cost and return", SENTENCE, {"cost": study.plot()}, shown(study), True))
        headlines += _headlines(study)
        facts |= _facts(study)
    if hazards is not None:
        sections.append(Section("What to spare, and why", _said(hazards), {}, hazards.advice, unfolded=True))
        sections.append(Section("Ranges by site", SITES, {}, hazards.sites.drop(columns="path"), unfolded=True))
        if len(hazards.casts):
            sections.append(Section("Attention in 8 bits", CASTS, {}, hazards.casts))
        facts["hazards"] = joined((name, _plain(value)) for name, value in hazards.record.items())
    lead = study.verdict if study is not None else _said(hazards) if hazards is not None else ""
    title = f"{study.record['scheme']} on {model}" if study is not None else f"What to spare in {model}"
    return Page(title, lead, headlines, sections, facts)


def arm_rows(frame: pd.DataFrame, by: str) -> list[tuple[str, ...]]:
    """A study's table as cells: arm, tokens spared, cost with its interval, share given back with its interval.

    Where there is nothing to recover, that is what stands in place of a share.
    """
    column = "loss_cost" if by == "loss" else "kl"
    rows = []
    for row in frame.to_dict("records"):
        cells = [
            str(row["arm"]),
            f"{row['spared']:.3g}",
            *(f"{row[column + end]:+.4f}" for end in ("", "_low", "_high")),
        ]
        back = [row["recovered" + end] for end in ("", "_low", "_high")]
        known = row["role"] != "full" and back[0] == back[0]
        shares = [f"{100 * value:.0f}" for value in back] if known else [str(row["given_back"]), "", ""]
        rows.append((*cells, *shares))
    return rows


def shown(study: Study) -> pd.DataFrame:
    """The table under its readers' names, shares in percent."""
    columns = ["arm", "tokens spared a row", COST[study.by], "95 % from", "95 % to"]
    columns += ["given back (%)", "back from", "back to"]
    return pd.DataFrame(arm_rows(study.table(), study.by), columns=columns)


def _headlines(study: Study) -> list[Headline]:
    unit = "nats a token that quantizing costs" if study.by == "loss" else "nats, KL to the full model"
    cards = [Headline(f"{study.cost('nothing').value:.4f}", unit)]
    if not study.recoverable:
        return [*cards, Headline(study.given_back("nothing"), "the cost cannot be told from 0")]
    for choice in study.choices:
        cards.append(Headline(f"{100 * study.recovered(choice).value:.0f} %", f"of it given back by sparing {choice}"))
    return cards


def _said(hazards: Hazards) -> str:
    first = hazards.advice.iloc[0]
    said = f"{first['what']}: {first['where']}, since {first['why']}."
    return said[0].upper() + said[1:]


def _facts(study: Study) -> dict[str, str]:
    record = study.record
    versions = record.pop("versions", {})
    return {
        "versions": joined(versions.items()),
        "study": joined((name, _plain(value)) for name, value in record.items()),
    }


def _plain(value: object) -> str | int | float:
    return value if isinstance(value, str | int | float) else json.dumps(value)
