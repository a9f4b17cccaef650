"""Which tokens a command spares, in words: measured, first:4, positions:0,64, tokens:0, outlying:20, spikes:2, none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sinkscope.errors import InputError, unknown

if TYPE_CHECKING:
    from torch import nn

    from sinkscope.quantization import Spared

WORDS = ("measured", "first:N", "positions:LIST", "tokens:LIST", "outlying:RATIO", "spikes:N", "none")
Build = Callable[["nn.Module", Mapping[str, Any], float | None], "Spared"]


def choices_of(words: Sequence[str]) -> dict[str, Build]:
    """What builds each choice once there is a model; empty for none. Raises `InputError` for words that say nothing."""
    if "none" in words:
        if len(words) > 1:
            raise InputError("--spare none goes alone: nothing spared is part of every study")
        return {}
    return {word: _choice(word) for word in dict.fromkeys(words)}


def _choice(word: str) -> Build:
    kind, _, rest = word.partition(":")
    builders: dict[str, Callable[[str], Build]] = {
        "measured": lambda rest: _measured(word, rest),
        "first": lambda rest: _first(_whole(word, rest)),
        "positions": lambda rest: _positions(_numbers(word, rest)),
        "tokens": lambda rest: _tokens(_numbers(word, rest)),
        "outlying": lambda rest: _outlying(_ratio(word, rest)),
        "spikes": lambda rest: _spikes(_whole(word, rest or "1")),
    }
    if kind not in builders:
        raise unknown("choice of --spare", word, WORDS)
    return builders[kind](rest)


def _measured(word: str, rest: str) -> Build:
    if rest:
        raise InputError(f"--spare {word}: write measured alone; --epsilon is its threshold")

    def build(model: nn.Module, given: Mapping[str, Any], epsilon: float | None) -> Spared:
        from sinkscope.quantization import MeasuredSinks

        return MeasuredSinks() if epsilon is None else MeasuredSinks(epsilon)

    return build


def _first(count: int) -> Build:
    def build(model: nn.Module, given: Mapping[str, Any], epsilon: float | None) -> Spared:
        from sinkscope.quantization import FirstTokens

        return FirstTokens(count)

    return build


def _positions(places: tuple[int, ...]) -> Build:
    def build(model: nn.Module, given: Mapping[str, Any], epsilon: float | None) -> Spared:
        from sinkscope.quantization import Positions

        return Positions(places)

    return build


def _tokens(ids: tuple[int, ...]) -> Build:
    def build(model: nn.Module, given: Mapping[str, Any], epsilon: float | None) -> Spared:
        from sinkscope.quantization import Tokens

        return Tokens(ids)

    return build


def _outlying(ratio: float) -> Build:
    def build(model: nn.Module, given: Mapping[str, Any], epsilon: float | None) -> Spared:
        from sinkscope.quantization import OutlyingTokens

        return OutlyingTokens(ratio=ratio)

    return build


def _spikes(count: int) -> Build:
    def build(model: nn.Module, given: Mapping[str, Any], epsilon: float | None) -> Spared:
        from sinkscope.quantization import SpikeTokens

        return SpikeTokens.of(model, given, count)

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
        return float(text or 20)
    except ValueError:
        raise InputError(f"--spare {word}: write outlying:RATIO, a number of medians such as 20") from None
