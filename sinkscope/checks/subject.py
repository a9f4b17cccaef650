"""The model that is checked, and the texts that it is checked on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from sinkscope.caches import trained_length
from sinkscope.data import (
    corpus_of,
    fed,
    natural_windows,
    ordinary_tokens,
    seeded,
    texts,
    try_out,
    vocabulary_of,
)
from sinkscope.data.tokenizer import encode, first_token_id, last_token_id
from sinkscope.errors import InputError
from sinkscope.hooks import Stream, family, is_encoder_decoder, reads_at_once
from sinkscope.measurement import Measurement, find_tokens, measure
from sinkscope.sinks import EPSILON, Measured, NothingChosenError, Tokens

TOKENS, TEXTS = 128, 24
CHOOSING = 8  # texts in which sinks to protect are chosen, none of which is scored
LONG = 512  # tokens of a long text
LONG_TEXTS = 12
JOINED = 6  # tokens of a message that may be joined with others where it is put into a template
ROOM = 2  # tokens that two BOS need in front of a text
OBSERVERS = ("AttentionReceived", "SlotReceived", "HiddenNorms", "MassiveActivations")
PROSE, CODE = "prose", "code"


@dataclass(frozen=True, eq=False)
class TextSet:
    """Texts of one kind, all of one length.

    `name`: in a few words; `says`: in full. `ids`: what is scored, with what the tokenizer or the chat template puts
    around it; `choosing`: other texts of the kind, in which tokens to protect are chosen; `plain`: stretches of the
    same texts with nothing around them, two tokens shorter; `bytes_per_token`: of each scored text, in UTF-8, None
    where it is no text; `sha256`: of the ids.
    """

    name: str
    says: str
    ids: Int[Tensor, "text token"]
    choosing: Int[Tensor, "other token"]
    plain: Int[Tensor, "text shorter"] | None = None
    bytes_per_token: tuple[float, ...] | None = None

    @cached_property
    def sha256(self) -> str:
        """Of what is scored."""
        return _digest(self.ids)

    @cached_property
    def choosing_sha256(self) -> str:
        """Of the texts for choosing."""
        return _digest(self.choosing)


@dataclass(eq=False)
class CheckedModel:
    """A model with its tokenizer (None where it has none), its texts, and what all sections share.

    `name`: what it was loaded by. `long`: makes texts for long contexts, where any are wanted.
    """

    name: str
    model: PreTrainedModel
    tokenizer: Any
    sets: tuple[TextSet, ...]
    batch_size: int = 8
    controls: int = 1
    seed: int = 0
    long: Callable[[], TextSet] | None = None
    _measured: dict[str, Measurement] = field(default_factory=dict)
    _tokens: dict[str, Tokens | None] = field(default_factory=dict)

    @property
    def config(self) -> Any:
        """The model's configuration."""
        return self.model.config

    @cached_property
    def family(self) -> str:
        """Its family in transformers."""
        return family(self.model)

    @cached_property
    def vocabulary_sha256(self) -> str | None:
        """A hash of the tokenizer's tokens and their ids; None without one."""
        if self.tokenizer is None:
            return None
        return hashlib.sha256(repr(sorted(self.tokenizer.get_vocab().items())).encode()).hexdigest()

    @cached_property
    def bos(self) -> int | None:
        """The tokenizer's BOS."""
        return getattr(self.tokenizer, "bos_token_id", None)

    def spelled(self, token: int) -> str:
        """A token as its tokenizer writes it."""
        return (
            repr(self.tokenizer.convert_ids_to_tokens(int(token)))[1:-1] if self.tokenizer is not None else str(token)
        )

    def measured(self, texts: TextSet) -> Measurement:
        """The attention sinks in these texts, measured once."""
        if texts.sha256 not in self._measured:
            given = fed(self.model, texts.ids)
            self._measured[texts.sha256] = measure(self.model, given, OBSERVERS, batch_size=self.batch_size)
        return self._measured[texts.sha256]

    def sinks(self, texts: TextSet) -> Tokens | None:
        """Positions that are sinks in the texts for choosing; None where there are none."""
        if texts.sha256 not in self._tokens:
            try:
                found = find_tokens(self.model, texts.choosing, Measured(EPSILON), batch_size=self.batch_size)
            except NothingChosenError:
                found = None
            self._tokens[texts.sha256] = found
        return self._tokens[texts.sha256]

    def at_once(self, texts: TextSet) -> int:
        """Texts per pass through a cache: all if states force token by token, since a step costs the same."""
        if reads_at_once(self.model, DynamicCache(config=self.model.config)):
            return self.batch_size
        return max(self.batch_size, len(texts.ids))

    def reads_text(self) -> str:
        """Empty where there are texts; else why not."""
        if self.tokenizer is None:
            return "the model has no tokenizer"
        return "" if self.sets[0].plain is not None else "its tokenizer spells no text"

    def decodes(self) -> str:
        """Empty for a causal language model that reads tokens; else why not."""
        if is_encoder_decoder(self.model):
            return "an encoder-decoder: its caches and its BOS are not those of a decoder alone"
        if Stream.of(self.model).stack != "decoder":
            return "it predicts no next token from a cache: it is no causal decoder"
        if self.model.get_output_embeddings() is None:
            return "it was loaded without a head, so it predicts nothing"
        return ""


def subject(
    name: str,
    model: PreTrainedModel,
    tokenizer: Any,
    own: Sequence[str] | str | Path | None = None,
    *,
    full: bool = False,
    count: int = TEXTS,
    tokens: int = TOKENS,
    field: str | None = None,
    **options: Any,
) -> CheckedModel:
    """The model with its texts: the given ones, else prose (code for shipped models), in the chat format first.

    `full`: a second set, of another kind; the chat format is left out there. Raises `InputError` for texts that are too
    short, and `UnsupportedModelError` for models that cannot be run on tokens alone.
    """
    vocabulary = vocabulary_of(model)
    length = min(tokens, trained_length(model) or tokens)
    made = _Made(model, tokenizer, vocabulary, length, count, options.get("seed", 0), own, field)
    sets = [made.set_of(kind, chat=number == 0) for number, kind in enumerate(made.kinds[: 2 if full else 1])]
    try_out(model, fed(model, sets[0].ids))
    return CheckedModel(name, model, tokenizer, tuple(sets), long=made.long, **options)


@dataclass(frozen=True, eq=False)
class _Made:
    """Makes sets of texts for one model."""

    model: PreTrainedModel
    tokenizer: Any
    vocabulary: int
    length: int
    count: int
    seed: int
    own: Sequence[str] | str | Path | None
    field: str | None

    @property
    def kinds(self) -> list[str]:
        if self.tokenizer is None:
            return ["random tokens"]
        if self.own is not None:
            return ["your texts"]
        return [CODE, PROSE] if corpus_of(self.model.config) == "python" else [PROSE, CODE]

    def set_of(self, kind: str, *, chat: bool) -> TextSet:
        """Texts of a kind. Raises `InputError` where there are not two to score."""
        if self.tokenizer is None:
            return self._random("the model has no tokenizer")
        around = self._around() if chat else None
        wanted = self.count + CHOOSING
        width = self.length - around + JOINED if around else self.length
        plain = self._windows(kind, width, wanted)
        ids, form = (self._in_chat(plain), " in the chat format") if around else (self._as_tokenized(plain), "")
        if len(ids) >= 4 and len(ids.unique(dim=0)) < 4:
            return self._random("its tokenizer spells no text: they all read the same")
        if len(ids) < 4:
            raise InputError(
                f"{kind}: {len(ids)} texts of {self.length} tokens are too few: give longer texts, or more"
            )
        # Where texts are few, at most a quarter of them are set aside for choosing.
        first = max(2, min(self.count, len(ids) - min(CHOOSING, len(ids) // 4)))
        name = f"{kind}{form}"
        says = f"{first} texts of {ids.shape[1]} tokens: {name}"
        bare = plain[:first, : min(plain.shape[1], self.length - ROOM)]
        sizes = tuple(len(text.encode()) / bare.shape[1] for text in self.tokenizer.batch_decode(bare))
        return TextSet(name, says, ids[:first], ids[first:], bare, sizes)

    def long(self) -> TextSet:
        """Code of several hundred tokens. Raises `InputError` without a tokenizer, and where texts are too short."""
        if self.tokenizer is None:
            raise InputError("the model has no tokenizer, so there are no long texts")
        length = min(LONG, trained_length(self.model) or LONG)
        kind = self.kinds[0] if self.own is not None else CODE
        ids = self._as_tokenized(self._windows(kind, length, LONG_TEXTS))
        return TextSet(f"long {kind}", f"{len(ids)} texts of {length} tokens: {kind}", ids, ids[:0])

    def _windows(self, kind: str, width: int, count: int) -> Tensor:
        """Stretches of texts with nothing around them, few from each document."""
        if self.own is not None:
            documents = list(texts(Path(self.own))) if isinstance(self.own, str | Path) else list(self.own)
            return _stretches(self.tokenizer, documents, width, count)
        if kind == CODE:
            return natural_windows(self.tokenizer, width, count, self.seed, corpus="python").input_ids
        return natural_windows(self.tokenizer, width, count, self.seed, corpus="prose", split="all").input_ids

    def _as_tokenized(self, plain: Tensor) -> Tensor:
        """The stretches with what the tokenizer puts around every text, cut to their length."""
        found = plain
        if (count := begins_with(self.tokenizer)) and (token := first_token_id(self.tokenizer)) is not None:
            start = torch.full_like(plain[:, :count], token)
            found = torch.cat([start, plain[:, :-count]], 1)
        if (end := last_token_id(self.tokenizer)) is not None:
            found = torch.cat([found[:, :-1], torch.full_like(found[:, :1], end)], 1)
        return found

    def _in_chat(self, plain: Tensor) -> Tensor:
        """The stretches as users' messages, each cut to the length of a text; those that are shorter are left out."""
        turns = [[{"role": "user", "content": text}] for text in self.tokenizer.batch_decode(plain)]
        rows = self.tokenizer.apply_chat_template(turns, tokenize=True, return_dict=False)
        kept = [row[: self.length] for row in rows if len(row) >= self.length]
        return torch.tensor(kept, dtype=torch.long).reshape(len(kept), self.length)

    def _around(self) -> int | None:
        """Tokens that the chat template puts around a message; None without one, or where it leaves too little room."""
        if not getattr(self.tokenizer, "chat_template", None) or Stream.of(self.model).stack != "decoder":
            return None
        around = len(self.tokenizer.apply_chat_template([{"role": "user", "content": ""}], return_dict=False))
        return around if around <= self.length // 2 else None

    def _random(self, why: str) -> TextSet:
        generator = seeded("check", self.seed)
        ordinary = ordinary_tokens(None, self.vocabulary)
        ids = ordinary[torch.randint(len(ordinary), (self.count + CHOOSING, self.length), generator=generator)]
        says = f"{self.count} rows of {self.length} random tokens, since {why}"
        return TextSet("random tokens", says, ids[: self.count], ids[self.count :])


def begins_with(tokenizer: Any) -> int:
    """How many BOS (or [CLS]) the tokenizer puts in front of a text: none, one, or two where two places add it."""
    start = first_token_id(tokenizer)
    ids = tokenizer.encode("a")
    return next((place for place, token in enumerate(ids) if token != start), len(ids))


def _digest(ids: Tensor) -> str:
    return hashlib.sha256(str(tuple(ids.shape)).encode() + ids.cpu().numpy().tobytes()).hexdigest()


def _stretches(tokenizer: Any, documents: Sequence[str], width: int, count: int) -> Tensor:
    """Stretches of `width` tokens, the first of each document first. Raises `InputError` where there are none."""
    encoded = encode(tokenizer, list(documents)) if documents else []
    parts = [[ids[start : start + width] for start in range(0, len(ids) - width + 1, width)] for ids in encoded]
    rows = [part[turn] for turn in range(max(map(len, parts), default=0)) for part in parts if turn < len(part)]
    if not rows:
        longest = max(map(len, encoded), default=0)
        raise InputError(f"the longest text has {longest} tokens, and {width} are asked for: give longer texts")
    return torch.tensor(rows[:count])
