"""The page of measurements side by side."""

from __future__ import annotations

from sinkscope.measurement import Comparison, Comparisons, Measurement
from sinkscope.names import short
from sinkscope.report.page import Headline, Page, Section
from sinkscope.theme import template


def comparison_page(comparison: Comparison | Comparisons, epsilon: float = 0.3, position: int = 0) -> Page:
    """The numbers that both measurements share, and a map of the differences per head if heads correspond."""
    parts = comparison.parts if isinstance(comparison, Comparisons) else (comparison,)
    several = len(parts) > 1
    sections = [section for part in parts for section in _sections(part, epsilon, position, several)]
    base = parts[0].names[0]
    first = f"sink rate at position {position}, %"
    headlines = []
    for part in parts:
        table = part.table(epsilon).set_index("quantity")
        if first in table.index:
            row = table.loc[first]
            text = f"{row['first']:.1f} → {row['second']:.1f} %"
            headlines.append(Headline(text, f"sink rate at {position}: {base} → {part.names[1]}"))
    lead = (
        f"A difference is the second minus the first, with its 95 % interval over samples. ε = {epsilon:g}. "
        "If both read the same tokens, samples are resampled together."
    )
    facts = {
        name: _fact(one) for part in parts for name, one in zip(part.names, (part.first, part.second), strict=True)
    }
    others = ", ".join(part.names[1] for part in parts)
    return Page(f"{others} compared with {base}", lead, headlines, sections, facts)


def _sections(part: Comparison, epsilon: float, position: int, several: bool) -> list[Section]:
    whose = f", {part.names[1]}" if several else ""
    pairs = "the same tokens" if part.paired else "different tokens, so samples are resampled independently"
    numbers = Section(
        f"Numbers of both{whose}",
        f"{part.names[0]} and {part.names[1]} read {pairs}.",
        table=part.table(epsilon),
        unfolded=True,
    )
    if not part.has_partners:
        return [numbers]
    heads = part.heads(position)
    sure = int(heads["differs"].sum())
    figure = part.plot(position).update_layout(template=template())
    sentence = (
        f"The attention that position {position} receives, {part.names[1]} minus {part.names[0]}, in percentage "
        f"points. A dot marks an interval that excludes 0: {sure} of {len(heads)} heads. About one in twenty heads "
        "that do not differ has a dot."
    )
    most = heads.reindex(heads["difference"].abs().sort_values(ascending=False).index)
    if heads["stack"].nunique() == 1:
        most = most.drop(columns="stack")
    return [numbers, Section(f"Heads{whose}", sentence, {"difference per head": figure}, most)]


def _fact(measurement: Measurement) -> str:
    record = measurement.record
    description = record["input"].get("description", "")
    size = f"{record['samples']} samples, up to {record['tokens']} tokens"
    return f"{short(record['model'])}: {size}{f'; {description}' if description else ''}"
