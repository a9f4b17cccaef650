"""Hazards of quantization in a model: as sections of a trial's page, or as a page."""

from __future__ import annotations

from sinkscope.names import short
from sinkscope.quantization import Hazards
from sinkscope.report.page import Page, Section
from sinkscope.report.provenance import recorded

SITES = (
    "For each place that a quantizer needs a range for: the largest token, in medians of the unprotected tokens, with "
    "and without the protected tokens. Bits lost: the bits that the protected tokens take from the others in a range "
    "for all tokens. The channel columns: the largest channel, in medians of the channels over unprotected tokens, and "
    "the share of these tokens in which it is an outlier."
)
RANKED = (
    "Each part of the choice alone: the bits of a range that it gives back, averaged over the inputs of linear maps."
)
CASTS = (
    "Shares of attention weights that a cast to 8-bit floating point (e4m3) makes 0. Kernels walk forward or backward "
    "over blocks of 64 keys, and multiply by 256 before the cast or not. Mass is the attention that is lost."
)


def hazards_sections(hazards: Hazards) -> list[Section]:
    """What to protect and why, then the numbers."""
    sections = [Section("What to protect, and why", _lead(hazards), {}, hazards.advice, unfolded=True)]
    if len(hazards.ranked):
        sections.append(Section("Which choice gives back most", RANKED, {}, hazards.ranked, unfolded=True))
    sections.append(Section("Ranges by site", SITES, {}, hazards.sites.drop(columns="path"), unfolded=True))
    if len(hazards.casts):
        sections.append(Section("Attention in 8 bits", CASTS, {}, hazards.casts))
    return sections


def hazards_page(hazards: Hazards) -> Page:
    """The page of hazards without a trial."""
    title = f"What to protect in {short(hazards.record['model'])}"
    return Page(title, _lead(hazards), [], hazards_sections(hazards), {"hazards": recorded(hazards.record)})


def _lead(hazards: Hazards) -> str:
    first = hazards.advice.iloc[0]
    sentence = f"{first['what']}: {first['where']}, since {first['why']}."
    return sentence[0].upper() + sentence[1:]
