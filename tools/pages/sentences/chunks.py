"""What joining chunks that were read apart costs, and what repairs give back."""

from __future__ import annotations

from typing import Any

from tools.pages.stored import ends, read

PAGE = "docs/chunks.md"
SMOLLM2, NANO = "real/joined_chunks", "real/joined_chunks_nano"


def sentences() -> list[str]:
    """The page's sentences, in its order."""
    return [*_texts(), *_sinks(), *_repairs(), *_orders(), *_facts()]


def _texts() -> list[str]:
    (tokens, scored), (nano_tokens, nano_scored) = (_lengths(place) for place in (SMOLLM2, NANO))
    return [
        f"in four chunks of {tokens} tokens, and {scored} further tokens that are scored (`nano`: {nano_tokens} and "
        f"{nano_scored})"
    ]


def _lengths(place: str) -> tuple[int, int]:
    """The tokens of each chunk, and those that are scored."""
    result = _part("in order", place)
    (tokens,) = set(result["lengths"])
    return tokens, result["tokens"] - result["reading"]["context"]


def _sinks() -> list[str]:
    joined, repaired, whole = (
        [100 * mean for mean, *_ in _part("sinks")["sink_mass"][cache]] for cache in ("joined", "first 1", "at once")
    )
    return [
        f"together they take {sum(joined):.0f} % of the attention, about {sum(joined) / len(joined):.0f} % each; when "
        f"the text is read at once, the first takes {whole[0]:.0f} % and the others {sum(whole[1:]):.1f} % in all.",
        f"gives most of the attention ({repaired[0]:.0f} %) back to the first chunk",
    ]


def _repairs() -> list[str]:
    found = _arms("in order")
    sixteen = [row["recovered"] for arm, row in found.items() if arm.endswith(" 16") and row["role"] == "arm"]
    one = [row["recovered"] for arm, row in found.items() if arm.endswith(" 1") and row["role"] == "arm"]
    dropped, beats = found["strongest dropped"], ends(found["strongest dropped"], "beats_by", 3)
    return [
        f"one token of each later chunk gives back {_percent(min(one))} to {_percent(max(one))} % of what joining "
        f"costs, sixteen give back {_percent(min(sixteen))} to {_percent(max(sixteen))} %",
        f"gives back as much as recomputing it** ({_percent(dropped['recovered'])} %), and more than dropping a random "
        f"token (by {dropped['beats_by']:.3f}; {' to '.join(beats)})",
        f"gives back no more ({_percent(found['sinks dropped']['recovered'])} %)",
    ]


def _orders() -> list[str]:
    found = _arms("shuffled")
    first = found["first 1"]
    dropped = [found[arm]["recovered"] for arm in ("strongest dropped", "sinks dropped")]
    return [
        f"Here dropping gives back {_percent(min(dropped))} to {_percent(max(dropped))} % on SmolLM2, where "
        f"recomputing gives back {_percent(first['recovered'])} % ({' to '.join(ends(first, 'recovered', 0, 100))})."
    ]


def _facts() -> list[str]:
    found, more = _arms("needles"), "more_than_joined"
    ones = [found[arm] for arm in ("first 1", "strongest dropped")]
    points = [_percent(pick(row[more] for row in ones)) for pick in (min, max)]
    low, high = min(row[f"{more}_low"] for row in ones), max(row[f"{more}_high"] for row in ones)
    around = " to ".join(ends({f"{more}_low": low, f"{more}_high": high}, more, 0, 100))
    whole, sixteen, random = (found[arm] for arm in ("full", "first 16", "random for first 16"))
    return [
        f"Read at once, SmolLM2 answers {_percent(whole['recall'])} % right, from joined chunks "
        f"{_percent(found['joined']['recall'])} %.",
        f"but {' to '.join(points)} ({around}) of the {_percent(whole[more])} points that are missing here; sixteen "
        f"recomputed give back {_percent(sixteen[more])} ({' to '.join(ends(sixteen, more, 0, 100))}), where as many "
        f"random ones give {_percent(random[more])}.",
    ]


def _part(part: str, place: str = SMOLLM2) -> dict[str, Any]:
    return dict(read(place)["parts"][part]["result"])


def _arms(part: str) -> dict[str, dict[str, Any]]:
    return {row["arm"]: row for row in _part(part)["arms"]}


def _percent(share: float) -> str:
    return f"{100 * share:.0f}"
