"""`--protect WORDS`: choices of tokens, and prefixes, which the command line alone knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sinkscope.errors import InputError

if TYPE_CHECKING:
    from torch import nn

    from sinkscope.quantization import Prefix
    from sinkscope.sinks import Choice

RATIO = 20.0  # medians, for prefixes: nano's sink has 56, and the usual 64 would miss it
OF_BEFORE = {"tokens": "ids", "outlying": "outliers"}  # words of --spare, read for one release


@dataclass(frozen=True)
class At:
    """Where a prefix is looked for."""

    model: nn.Module
    given: Mapping[str, Any]
    tokenizer: Any = None


@dataclass(frozen=True)
class Saved:
    """A prefix that was saved."""

    folder: Path
    chooses: ClassVar[bool] = False

    def __call__(self, at: At) -> Prefix:
        from sinkscope.quantization import Prefix

        return Prefix.load(self.folder, at.model, at.tokenizer)


@dataclass(frozen=True)
class Found:
    """A prefix that is found in texts: "bos", "peak", or by outliers of so many medians."""

    by: str

    @property
    def chooses(self) -> bool:
        """Whether it depends on texts, which must then not be scored; the BOS does not."""
        return self.by != "bos"

    def __call__(self, at: At) -> Prefix:
        from sinkscope.quantization import find_prefix

        bos = getattr(at.tokenizer, "bos_token_id", None)
        given = {name: at.given[name] for name in ("input_ids", "attention_mask") if at.given.get(name) is not None}
        if self.by in ("bos", "peak"):
            return find_prefix(at.model, given, self.by, bos=bos, tokenizer=at.tokenizer)
        ratio = float(self.by) if self.by else RATIO
        return find_prefix(at.model, given, threshold=ratio, bos=bos, tokenizer=at.tokenizer)


Build = Saved | Found


def protecting(
    protect: Sequence[str] | None, spare: Sequence[str] | None, epsilon: float | None = None
) -> dict[str, Choice | Build] | None:
    """The choices, and what builds a prefix once there is a model: empty for none, None where nothing was said.

    `spare`: words of --spare, the option before --protect. `epsilon`: the threshold of `measured` without its own.
    Raises `InputError` for words that say nothing, and for none beside others.
    """
    words = list(dict.fromkeys([*(protect or ()), *map(_of_before, spare or ())]))
    if spare:
        from sinkscope.report.terminal import note

        note(f"--spare is now --protect: {' '.join(f'--protect {word}' for word in words)}")
    if "none" in words and len(words) > 1:
        raise InputError("--protect none stands alone: everything rounded is part of every trial")
    if not words:
        return None
    return {} if words == ["none"] else {word: _build(word, epsilon) for word in words}


def _of_before(word: str) -> str:
    kind, colon, rest = word.partition(":")
    return f"{OF_BEFORE.get(kind, kind)}{colon}{rest}"


def _build(word: str, epsilon: float | None) -> Choice | Build:
    kind, _, rest = word.partition(":")
    if kind == "prefix":
        return _prefix(word, rest)
    from sinkscope.sinks import Measured, Sum, parse

    choice = parse(word)
    assert choice is not None
    if epsilon is not None:

        def own(one: Choice) -> Choice:
            return replace(one, epsilon=epsilon) if one == Measured() else one

        choice = Sum(tuple(map(own, choice.parts))) if isinstance(choice, Sum) else own(choice)
    return choice


def _prefix(word: str, rest: str) -> Build:
    """A prefix that was saved, or one that is found in texts: by outliers, by the peak after it, or the BOS."""
    saved = Path(rest) if rest and not rest.replace(".", "", 1).isdecimal() and rest not in ("bos", "peak") else None
    if saved is not None and not saved.is_dir():
        raise InputError(
            f"--protect {word}: there is no folder {saved}; write prefix:DIR with a saved one, prefix:bos, "
            f"prefix:peak or prefix:RATIO, a number of medians such as {RATIO:g}"
        )

    return Found(rest) if saved is None else Saved(saved)
