"""What the lines of SmolLM2's report card leave out, and what its sections took."""

from __future__ import annotations

from typing import Any

from tools.pages.stored import groups, read, span

PAGE = "docs/check.md"
PROSE, CODE = "prose in the chat format", "code"
TENSOR = ("a8-tensor", "a8-tensor-protected")


def sentences() -> list[str]:
    """The page's sentences, in its order."""
    half, quarter = (_row("evict", CODE, f"h2o@{share}%")["value"] for share in (50, 25))
    streams = {corpus: span(_stream_costs(corpus), 2) for corpus in (PROSE, CODE)}
    costs = {key: [_row("int8", corpus, key)["value"] for corpus in (PROSE, CODE)] for key in TENSOR}
    prose, code = (f"{alone:.2f} to {kept:.3f}" for alone, kept in zip(*costs.values(), strict=True))
    maps, tokens = (_row("int8", PROSE, f"rescue:a8-static-{unit}") for unit in ("maps", "tokens"))
    count, of_maps = groups(r"(\d+) of (\d+) maps", maps["advice"])
    return [
        f"on code h2o costs at half of the bytes ({half:.3f}) as at a quarter ({quarter:.3f}), and a stream of 128 "
        f"keys that keeps 1 to 4 first tokens costs {streams[CODE]}, which on prose is {streams[PROSE]} and",
        f"takes `a8-tensor` from {prose} on prose, where it still *costs*, and from {code} on",
        f"of what `a8-static` costs on {maps['n']} texts of prose, {count} of {of_maps} maps in 16 bits {_why(maps)}, "
        f"and a few tokens of each text {_why(tokens).removeprefix('give back ')}",
        *_seconds(),
    ]


def _stream_costs(corpus: str) -> list[float]:
    """What streams with 4, 1 and 2 first tokens cost; the last two are stored as differences from the first."""
    four, *others = (_row("stream", corpus, f"sinks-{count}")["value"] for count in (4, 1, 2))
    return [four, *(four + other for other in others)]


def _seconds() -> list[str]:
    sections = {name: part["seconds"] for name, part in _card()["sections"].items()}
    *_, third, second, first = sorted(sections, key=lambda name: sections[name])
    longest = ", ".join(f"{_minutes(sections[name])} for `{name}`" for name in (first, second))
    return [
        f"Its sections took {_minutes(_card()['seconds'])} in all, on two cores: {longest} and "
        f"{_minutes(sections[third])} for `{third}`."
    ]


def _minutes(seconds: float) -> str:
    return f"{round(seconds) // 60}:{round(seconds) % 60:02}"


def _why(row: dict[str, Any]) -> str:
    return str(row["why"]).replace("-", "−")


def _row(section: str, corpus: str, key: str) -> dict[str, Any]:
    return next(row for row in _card()["sections"][section]["on"][corpus]["rows"] if row["key"] == key)


def _card() -> dict[str, Any]:
    return dict(read("models/SmolLM2-135M-Instruct.Q4_1.gguf"))
