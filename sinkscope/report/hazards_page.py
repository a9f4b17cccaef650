"""What quantizers trip over in a model: the sections of a page, and a page of their own."""

from __future__ import annotations

import json

from sinkscope.names import short
from sinkscope.quantization import Hazards
from sinkscope.report.page import Page, Section
from sinkscope.report.provenance import joined

SITES = (
    "Where a quantizer needs a range: the largest token in medians of the tokens that are left, with the protected "
    "tokens and without them; bits lost is how many bits of a range for all tokens the protected ones take from the "
    "others; the channel columns are the largest channel in medians of the channels over the tokens that are left, and "
    "in what share of them it stands out."
)
RANKED = (
    "Each part of the choice alone: how many bits of a range it gives back, a mean over what goes into linear maps."
)
CASTS = (
    "Shares of attention weights that a cast to 8-bit floating point (e4m3) makes 0. Kernels walk forward or backward "
    "over blocks of 64 keys, and multiply by 256 before the cast or not. Mass is the attention that is lost."
)


def hazards_sections(hazards: Hazards) -> list[Section]:
    """What to protect and why, then the numbers."""
    found = [Section("What to protect, and why", _lead(hazards), {}, hazards.advice, unfolded=True)]
    if len(hazards.ranked):
        found.append(Section("Which choice gives back most", RANKED, {}, hazards.ranked, unfolded=True))
    found.append(Section("Ranges by site", SITES, {}, hazards.sites.drop(columns="path"), unfolded=True))
    if len(hazards.casts):
        found.append(Section("Attention in 8 bits", CASTS, {}, hazards.casts))
    return found


def hazards_page(hazards: Hazards) -> Page:
    """A page of hazards alone."""
    facts = {"hazards": joined((name, _plain(value)) for name, value in hazards.record.items())}
    return Page(
        f"What to protect in {short(hazards.record['model'])}", _lead(hazards), [], hazards_sections(hazards), facts
    )


def _lead(hazards: Hazards) -> str:
    first = hazards.advice.iloc[0]
    said = f"{first['what']}: {first['where']}, since {first['why']}."
    return said[0].upper() + said[1:]


def _plain(value: object) -> str | int | float:
    return value if isinstance(value, str | int | float) else json.dumps(value)
