"""Texts of the user's own as rows of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, get_args

from sinkscope.errors import InputError, unknown

WindowKind = Literal["starts", "packed", "within"]


@dataclass(frozen=True)
class Cut:
    """Rows of token ids; what stands first in them, and what they are, in words."""

    rows: list[list[int]]
    first: str
    description: str


def cut(
    tokenizer: Any, texts: Iterable[str], tokens: int, windows: WindowKind | str, samples: int | None = None
) -> Cut:
    """Rows of at most `tokens` tokens of texts, at most `samples` of them, in order.

    "starts": the first `tokens` of each text, what the tokenizer puts first (and last) among them; shorter texts are
    shorter rows. "packed": all texts, each with what the tokenizer puts around it, one behind the other, cut into
    windows of `tokens`; what is left at the end is dropped. "within": every stretch of `tokens` of each text, cut from
    its beginning, without what the tokenizer puts around it. Only as many texts are read as that takes. Raises
    `InputError` for an unknown kind of windows, fewer than 2 tokens, and texts that give no row.
    """
    if windows not in get_args(WindowKind):
        raise unknown("windows", str(windows), get_args(WindowKind))
    if tokens < 2:
        raise InputError(f"tokens = {tokens}: at least 2")
    read = _Read(texts)
    rows = list(islice(_CUTS[windows](tokenizer, read, tokens), samples))
    if not rows:
        raise InputError(f"the {read.count} text(s) give no window of {tokens} tokens: use fewer tokens")
    said = f"{read.count} text{'' if read.count == 1 else 's'}"
    if windows == "starts":
        short = sum(len(row) < tokens for row in rows)
        said = f"the first {tokens} tokens of each of {said}" + (f", {short} of them shorter" if short else "")
        return Cut(rows, "what the tokenizer puts first, or the text's first token", said)
    across = "packed one behind the other" if windows == "packed" else "cut from the beginning of each"
    said = f"{len(rows)} windows of {tokens} tokens of {said}, {across}"
    return Cut(rows, "whatever token the text has there", said)


class _Read:
    """Texts, counted as they are read."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts, self.count = texts, 0

    def __iter__(self) -> Iterator[str]:
        for text in self.texts:
            self.count += 1
            yield text


def _starts(tokenizer: Any, texts: Iterable[str], tokens: int) -> Iterator[list[int]]:
    for text in texts:
        if ids := list(tokenizer(text, truncation=True, max_length=tokens)["input_ids"]):
            yield ids


def _packed(tokenizer: Any, texts: Iterable[str], tokens: int) -> Iterator[list[int]]:
    rest: list[int] = []
    for text in texts:
        rest += tokenizer(text, verbose=False)["input_ids"]
        while len(rest) >= tokens:
            yield rest[:tokens]
            rest = rest[tokens:]


def _within(tokenizer: Any, texts: Iterable[str], tokens: int) -> Iterator[list[int]]:
    for text in texts:
        ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        for start in range(0, len(ids) - tokens + 1, tokens):
            yield ids[start : start + tokens]


_CUTS = {"starts": _starts, "packed": _packed, "within": _within}
