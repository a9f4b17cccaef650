"""Which tokens a command spares, in words: measured, first:4, positions:0,64, tokens:0, outlying:20, prefix, none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkscope.errors import InputError, unknown

if TYPE_CHECKING:
    from torch import nn

    from sinkscope.quantization import Prefix, Spared

WORDS = (
    *("measured", "first:N", "positions:LIST", "tokens:LIST", "outlying:RATIO", "spikes:N"),
    *("prefix[:RATIO|bos|peak|DIR]", "none"),
)
OUTLYING = 20.0  # medians, for tokens and for prefixes: nano's sink has 56, and the usual 64 would miss it


@dataclass(frozen=True)
class At:
    """Where a choice is looked for. `epsilon`: the threshold of measured sinks, None for its default."""

    model: nn.Module
    given: Mapping[str, Any]
    epsilon: float | None = None
    tokenizer: Any = None


Build = Callable[[At], "Spared | Prefix"]


def choices_of(words: Sequence[str]) -> dict[str, Build]:
    """What builds each choice once there is a model; empty for none. Raises `InputError` for words that say nothing."""
    if "none" in words:
        if len(words) > 1:
            raise InputError("--spare none goes alone: nothing spared is part of every study")
        return {}
    return {word: _choice(word) for word in dict.fromkeys(words)}


def _choice(word: str) -> Build:
    kind, _, rest = word.partition(":")
    builders: dict[str, Callable[[str, str], Build]] = {
        "measured": _measured,
        "first": _first,
        "positions": _positions,
        "tokens": _tokens,
        "outlying": _outlying,
        "spikes": _spikes,
        "prefix": _prefix,
    }
    if kind not in builders:
        raise unknown("choice of --spare", word, WORDS)
    return builders[kind](word, rest)


def _measured(word: str, rest: str) -> Build:
    if rest:
        raise InputError(f"--spare {word}: write measured alone; --epsilon is its threshold")

    def build(at: At) -> Spared:
        from sinkscope.quantization import MeasuredSinks

        return MeasuredSinks() if at.epsilon is None else MeasuredSinks(at.epsilon)

    return build


def _first(word: str, rest: str) -> Build:
    count = _whole(word, rest)

    def build(at: At) -> Spared:
        from sinkscope.quantization import FirstTokens

        return FirstTokens(count)

    return build


def _positions(word: str, rest: str) -> Build:
    places = _numbers(word, rest)

    def build(at: At) -> Spared:
        from sinkscope.quantization import Positions

        return Positions(places)

    return build


def _tokens(word: str, rest: str) -> Build:
    ids = _numbers(word, rest)

    def build(at: At) -> Spared:
        from sinkscope.quantization import Tokens

        return Tokens(ids)

    return build


def _outlying(word: str, rest: str) -> Build:
    ratio = _ratio(word, rest)

    def build(at: At) -> Spared:
        from sinkscope.quantization import OutlyingTokens

        return OutlyingTokens(ratio=ratio)

    return build


def _spikes(word: str, rest: str) -> Build:
    count = _whole(word, rest or "1")

    def build(at: At) -> Spared:
        from sinkscope.quantization import SpikeTokens

        return SpikeTokens.of(at.model, at.given, count)

    return build


def _prefix(word: str, rest: str) -> Build:
    """A prefix that was saved, or one that is found in the inputs: by outliers, by the peak behind it, or the BOS."""
    saved = Path(rest) if rest and not rest.replace(".", "", 1).isdecimal() and rest not in ("bos", "peak") else None
    if saved is not None and not saved.is_dir():
        raise InputError(
            f"--spare {word}: there is no folder {saved}; write prefix:DIR with a saved one, prefix:bos, prefix:peak, "
            f"or prefix:RATIO, a number of medians such as {OUTLYING:g}"
        )

    def build(at: At) -> Prefix:
        from sinkscope.quantization import Prefix, find_prefix

        if saved is not None:
            return Prefix.load(saved, at.model, at.tokenizer)
        bos = getattr(at.tokenizer, "bos_token_id", None)
        given = {name: at.given[name] for name in ("input_ids", "attention_mask") if at.given.get(name) is not None}
        if rest in ("bos", "peak"):
            return find_prefix(at.model, given, rest, bos=bos, tokenizer=at.tokenizer)
        return find_prefix(at.model, given, threshold=_ratio(word, rest), bos=bos, tokenizer=at.tokenizer)

    return build


def _whole(word: str, text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise InputError(f"--spare {word}: write {word.partition(':')[0]}:N with N of at least 1")
    return int(text)


def _numbers(word: str, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise InputError(f"--spare {word}: write numbers from 0 on with commas, as in {word.partition(':')[0]}:0,64")
    return tuple(map(int, parts))


def _ratio(word: str, text: str) -> float:
    try:
        return float(text) if text else OUTLYING
    except ValueError:
        kind = word.partition(":")[0]
        raise InputError(f"--spare {word}: write {kind}:RATIO, a number of medians such as {OUTLYING:g}") from None
