"""The sections of the report card, in their order."""

from __future__ import annotations

from collections.abc import Sequence

from sinkscope.checks import bos, cache_bits, evicting, int8, needed, served, sink, streaming
from sinkscope.checks.section import CheckSection
from sinkscope.errors import InputError, unknown

SECTIONS: dict[str, CheckSection] = {
    section.name: section
    for section in (
        sink.SECTION,
        bos.SECTION,
        cache_bits.SECTION,
        needed.SECTION,
        streaming.SECTION,
        evicting.SECTION,
        served.SECTION,
        int8.SECTION,
    )
}


def chosen(*, full: bool = False, only: Sequence[str] = (), skip: Sequence[str] = ()) -> tuple[CheckSection, ...]:
    """The sections to run: those in `only`, or else all of the tier, without those in `skip`.

    Raises `InputError` for an unknown name, for one that is given twice or in both, and if nothing is left.
    """
    for name in (*only, *skip):
        if name not in SECTIONS:
            raise unknown("section", name, SECTIONS)
        if [*only, *skip].count(name) > 1 and not (name in only and name in skip):
            raise InputError(f"section {name} is given twice")
    if in_both := set(only) & set(skip):
        raise InputError(f"{min(in_both)} is both in 'only' and in 'skip'")
    tier = [name for name, section in SECTIONS.items() if full or section.tier == "default"]
    names = [name for name in SECTIONS if name in (only or tier) and name not in skip]
    if not names:
        raise InputError("no section is left to run")
    return tuple(SECTIONS[name] for name in names)


def check_raisable(flags: Sequence[str], sections: Sequence[CheckSection]) -> None:
    """Raises `InputError` for a flag that none of these sections can raise: another one does, or no row has its key."""
    for flag in flags:
        key, colon, _ = flag.rpartition(":")  # a key may hold colons
        raising = [section for section in SECTIONS.values() if flag in section.flags or (colon and section.has(key))]
        if colon and not raising:
            raise unknown("row", key, [key for section in SECTIONS.values() for key in section.keys])
        if raising and not any(section in sections for section in raising):
            raise InputError(
                f"flag {flag} is raised by section {raising[0].name}, which does not run: run it, or take another"
            )
