"""The checked model and its texts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from sinkscope.caches import trained_length
from sinkscope.data import (
    corpus_digest,
    corpus_of,
    fed,
    natural_windows,
    ordinary_tokens,
    seeded,
    texts,
    try_out,
    vocabulary_of,
)
from sinkscope.data.media import try_out_media
from sinkscope.data.model_inputs import OTHERS
from sinkscope.data.tokenizer import encode, encoded_letter, first_token_id, in_chat, last_token_id
from sinkscope.errors import InputError
from sinkscope.hooks import Stream, is_encoder_decoder, reads_at_once, text_config
from sinkscope.measurement import Measurement, find_tokens, measure
from sinkscope.quantization import full_layers
from sinkscope.sinks import EPSILON, Measured, NothingChosenError, Tokens

TOKENS, TEXTS = 128, 24
CALIBRATION = 8  # texts for choosing sinks and fitting ranges; none of them is scored
LONG_TOKENS, LONG_TEXTS = 512, 8
MERGED = 6  # tokens that a message may lose when the tokenizer merges it with the text of a template
BOS_ROOM = 2  # tokens that two BOS need in front of a text
LEAST_TOKENS, LEAST_TEXTS = 2 * BOS_ROOM, 2
OBSERVERS = ("AttentionReceived", "SlotReceived", "HiddenNorms", "MassiveActivations")
PROSE, CODE = "prose", "code"


@dataclass(frozen=True, eq=False)
class TextSet:
    """Texts of one kind and one length; or images or recordings.

    Args:
        name: The kind, in a few words.
        description: How many texts, how long, of which kind.
        ids: The scored texts, with what the tokenizer or the chat template adds.
        calibration: Other texts of the kind, for choosing sinks and fitting ranges.
        plain: The scored texts without what tokenizer and chat template add, up to two tokens shorter than `ids`; None
            for random tokens, and for plain texts themselves.
        bytes_per_token: Mean length of a token of each text in UTF-8, without added ones; None for random tokens.
        corpus_sha256: Hash of the documents that the texts are taken from; None for random tokens.
        inputs: The arguments of forward passes, a mapping per size of sample, for images and recordings, whose `ids`
            are empty; empty for texts.
        samples: What its samples are called.
    """

    name: str
    description: str
    ids: Int[Tensor, "text token"]
    calibration: Int[Tensor, "other token"]
    plain: TextSet | None = None
    bytes_per_token: tuple[float, ...] | None = None
    corpus_sha256: str | None = None
    inputs: tuple[Mapping[str, Tensor], ...] = ()
    samples: str = "texts"

    @cached_property
    def sha256(self) -> str:
        """Hash of the scored texts."""
        return (
            _digest(*(value for part in self.inputs for value in part.values())) if self.inputs else _digest(self.ids)
        )

    @cached_property
    def calibration_sha256(self) -> str:
        """Hash of the calibration texts."""
        return _digest(self.calibration)

    def to_json(self) -> dict[str, Any]:
        """As a card records it: no text."""
        return {
            "name": self.name,
            "says": self.description,
            "n": len(self.ids),
            "sha256": self.sha256,
            "corpus_sha256": self.corpus_sha256,
            "bytes_per_token": self.bytes_per_token and [round(size, 3) for size in self.bytes_per_token],
        }


@dataclass(eq=False)
class CheckedModel:
    """A model with its tokenizer and texts, and the measurements that sections share.

    Args:
        name: The name on the card.
        model: The model.
        tokenizer: Its tokenizer; None if it has none.
        sets: The texts; the first set is the one whose numbers the card shows.
        batch_size: Texts per pass.
        controls: Random controls per arm.
        seed: Seed of the texts and of random draws.
        long_texts: Makes the texts for long contexts, of the kind of a set, when a section needs them.
        source_sha256: A hash of the user's texts as a whole, of which sections may read other parts; None for those
            that come along.
    """

    name: str
    model: PreTrainedModel
    tokenizer: Any
    sets: tuple[TextSet, ...]
    batch_size: int = 8
    controls: int = 1
    seed: int = 0
    long_texts: Callable[[TextSet], TextSet] | None = None
    source_sha256: str | None = None
    _made: dict[tuple[str, str], Any] = field(default_factory=dict)

    @cached_property
    def vocabulary_sha256(self) -> str | None:
        """A hash of the tokenizer's tokens and their ids; None without one."""
        if self.tokenizer is None:
            return None
        return hashlib.sha256(repr(sorted(self.tokenizer.get_vocab().items())).encode()).hexdigest()

    @cached_property
    def tokenizer_sha256(self) -> str | None:
        """A hash of what makes ids of texts and chats, BOS and template included; None without a tokenizer."""
        if self.tokenizer is None:
            return None
        rules = getattr(self.tokenizer, "backend_tokenizer", None)
        template = getattr(self.tokenizer, "chat_template", None)
        words = rules.to_str() if rules is not None else self.vocabulary_sha256
        parts = (words, template, encoded_letter(self.tokenizer))
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    @cached_property
    def bos(self) -> int | None:
        """The tokenizer's BOS."""
        return getattr(self.tokenizer, "bos_token_id", None)

    @property
    def tokenizer_adds(self) -> int:
        """How many BOS the tokenizer puts in front of a text."""
        return 0 if self.bos is None else added_bos(self.tokenizer)

    @cached_property
    def template_fault(self) -> str:
        """Why the chat template cannot be filled; empty where it can, or is none."""
        return _template_fault(self.tokenizer)

    def token_text(self, token: int) -> str:
        """A token as the tokenizer writes it; its number without a tokenizer."""
        if self.tokenizer is None:
            return str(token)
        return repr(self.tokenizer.convert_ids_to_tokens(int(token)))[1:-1]

    def once(self, what: tuple[str, str], make: Callable[[], Any]) -> Any:
        """What sections or sets of texts share, by its kind and what it belongs to: `make` runs on the first call."""
        if what not in self._made:
            self._made[what] = make()
        return self._made[what]

    def measurement(self, texts: TextSet) -> Measurement:
        """The measurement of the scored texts, made on the first call."""
        inputs = texts.inputs or fed(self.model, texts.ids)
        make = partial(measure, self.model, inputs, OBSERVERS, batch_size=self.batch_size)
        return self.once(("measurement", texts.sha256), make)

    def sinks(self, texts: TextSet) -> Tokens | None:
        """Positions that are sinks in the calibration texts, found on the first call; None if there are none."""

        def find() -> Tokens | None:
            try:
                return find_tokens(self.model, texts.calibration, Measured(EPSILON), batch_size=self.batch_size)
            except NothingChosenError:
                return None

        return self.once(("sinks", texts.sha256), find)

    @property
    def windows(self) -> list[str]:
        """The kind of each layer that sees a window alone."""
        kinds = getattr(text_config(self.model), "layer_types", None) or []
        return [kind for kind in kinds if "sliding" in kind or "chunked" in kind]

    def texts_per_pass(self, texts: TextSet) -> int:
        """Texts per pass through a cache: all of them if states force token by token, since a step costs the same."""
        if reads_at_once(self.model, DynamicCache(config=self.model.config)):
            return self.batch_size
        return max(self.batch_size, len(texts.ids))

    def text_obstacle(self) -> str:
        """Why the model cannot be checked on text; empty if it can."""
        if self.tokenizer is None:
            return "the model has no tokenizer"
        return "" if self.sets[0].plain is not None else "its tokenizer spells no text"

    def decoder_obstacle(self) -> str:
        """Why the model is no causal decoder that predicts tokens; empty if it is one."""
        if is_encoder_decoder(self.model):
            return "an encoder-decoder: its caches and its BOS are not those of a decoder alone"
        if Stream.of(self.model).stack != "decoder":
            return "it predicts no next token from a cache: it is no causal decoder"
        if self.model.get_output_embeddings() is None:
            return "it was loaded without a head, so it predicts nothing"
        return ""

    def cache_obstacle(self) -> str:
        """Why the model is no causal decoder whose cache has layers of full attention; empty if it is one."""
        if obstacle := self.decoder_obstacle():
            return obstacle
        if not full_layers(self.model):
            return "no layer keeps keys and values of all tokens (windows and states alone)"
        return ""


def checked_model(
    name: str,
    model: PreTrainedModel,
    tokenizer: Any,
    user_texts: Sequence[str] | str | Path | None = None,
    *,
    full: bool = False,
    count: int = TEXTS,
    tokens: int = TOKENS,
    field: str | None = None,
    **options: Any,
) -> CheckedModel:
    """The model with its texts. The first set is in the chat format if the tokenizer has a template.

    Args:
        name: The name on the card.
        model: The model.
        tokenizer: Its tokenizer; without one, texts are random tokens.
        user_texts: Strings, or a file or folder of them; by default prose (code for models trained on code).
        full: Make a second set, of another kind and without the chat format.
        count: Scored texts per set.
        tokens: Tokens per text, at most the length that the model was trained for.
        field: The field that holds the text, in files of rows.
        options: `batch_size`, `controls` and `seed` of the `CheckedModel`.

    Raises `InputError` for texts that are too short, and `UnsupportedModelError` for models that need more than tokens.
    """
    if tokens < LEAST_TOKENS or count < LEAST_TEXTS:
        raise InputError(
            f"tokens = {tokens}, count = {count}: at least {LEAST_TOKENS} tokens of a text, and {LEAST_TEXTS} texts"
        )
    vocabulary = vocabulary_of(model)
    length = min(tokens, trained_length(model) or tokens)
    maker = _TextMaker(model, tokenizer, vocabulary, length, count, options.get("seed", 0), user_texts, field)
    made = [maker.text_set(kind, chat=number == 0) for number, kind in enumerate(maker.kinds[: 2 if full else 1])]
    # Where the tokenizer spells no text, both kinds are the same random tokens.
    sets = list({texts.name: texts for texts in made}.values())
    try_out(model, fed(model, sets[0].ids))
    return CheckedModel(
        name,
        model,
        tokenizer,
        tuple(sets),
        long_texts=maker.long_texts,
        source_sha256=maker.source_sha256,
        **options,
    )


def checked_on(
    name: str,
    model: PreTrainedModel,
    tokenizer: Any,
    inputs: Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]],
    **options: Any,
) -> CheckedModel:
    """The model with images or recordings, as the arguments of forward passes of it.

    Args:
        name: The name on the card.
        model: The model.
        tokenizer: Its tokenizer, or None.
        inputs: Arguments of all samples, or of the samples of each size.
        options: `batch_size`, `controls` and `seed` of the `CheckedModel`.

    Raises `InputError` for arguments without images or recordings, for fewer than two samples, and for what the model
    cannot read.
    """
    parts = (inputs,) if isinstance(inputs, Mapping) else tuple(inputs)
    medium = next((name for name in OTHERS if parts and all(name in part for part in parts)), None)
    if medium is None:
        raise InputError(f"inputs hold none of {', '.join(OTHERS)}: texts are given as texts")
    samples = "images" if medium == "pixel_values" else "recordings"
    # Some families cut images into patches, all of them in one row.
    counted = next((each for each in ("input_ids", "decoder_input_ids") if each in parts[0]), medium)
    count = sum(len(part[counted]) for part in parts)
    if count < LEAST_TEXTS:
        raise InputError(f"{count} {samples.removesuffix('s')}: at least {LEAST_TEXTS} are needed")
    try_out_media(model, [dict(part) for part in parts], TOKENS, f"these {samples}")
    sizes = dict.fromkeys(" × ".join(str(length) for length in part[medium].shape[1:]) for part in parts)
    size = next(iter(sizes)) if len(sizes) == 1 else f"{len(sizes)} sizes"
    none = torch.zeros(count, 0, dtype=torch.long)
    description = f"{count} {samples} ({medium} of {size})"
    texts = TextSet(samples, description, none, none[:0], inputs=parts, samples=samples)
    return CheckedModel(name, model, tokenizer, (texts,), **options)


@dataclass(frozen=True, eq=False)
class _TextMaker:
    """Makes sets of texts for one model."""

    model: PreTrainedModel
    tokenizer: Any
    vocabulary: int
    length: int
    count: int
    seed: int
    user_texts: Sequence[str] | str | Path | None
    field: str | None

    @cached_property
    def documents(self) -> list[str] | None:
        """The user's texts; None if there are none."""
        if (source := self.user_texts) is None:
            return None
        return list(texts(Path(source), self.field)) if isinstance(source, str | Path) else list(source)

    @property
    def source_sha256(self) -> str | None:
        """See `CheckedModel`."""
        if self.tokenizer is None or self.documents is None:
            return None
        return hashlib.sha256(repr(self.documents).encode()).hexdigest()

    @property
    def kinds(self) -> list[str]:
        if self.tokenizer is None:
            return ["random tokens"]
        if self.user_texts is not None:
            return ["your texts"]
        return [CODE, PROSE] if corpus_of(self.model.config) == "python" else [PROSE, CODE]

    def text_set(self, kind: str, *, chat: bool) -> TextSet:
        """Texts of a kind, in the chat format where `chat` is True and there is one.

        Raises `InputError` for fewer than four texts: two to score, two for calibration.
        """
        if self.tokenizer is None:
            return self._random("the model has no tokenizer")
        template = self._template_tokens() if chat else None
        width = self.length - template + MERGED if template else self.length
        plain = self._windows(kind, width, self.count + CALIBRATION)
        ids, form = (self._in_chat(plain), " in the chat format") if template else (self._as_tokenized(plain), "")
        if len(ids) >= 4 and len(ids.unique(dim=0)) < 4:
            return self._random("its tokenizer spells no text")
        if len(ids) < 4:
            raise InputError(
                f"{kind}: {len(ids)} texts of {self.length} tokens are too few: give longer texts, or more"
            )
        # Of few texts, at most a quarter is kept for calibration.
        scored = max(2, min(self.count, len(ids) - min(CALIBRATION, len(ids) // 4)))
        name = f"{kind}{form}"
        description = f"{scored} texts of {ids.shape[1]} tokens: {name}"
        bare = plain[:scored, : min(plain.shape[1], self.length - BOS_ROOM)]
        sizes = tuple(len(text.encode()) / bare.shape[1] for text in self.tokenizer.batch_decode(bare))
        corpus = self.source_sha256 or corpus_digest(PROSE if kind == PROSE else "python")
        as_plain = f"plain {kind}"
        plain_says = f"{scored} texts of {bare.shape[1]} tokens: {as_plain}"
        plain_set = TextSet(as_plain, plain_says, bare, bare[:0], None, sizes, corpus)
        return TextSet(name, description, ids[:scored], ids[scored:], plain_set, sizes, corpus)

    def long_texts(self, texts: TextSet) -> TextSet:
        """Texts of up to 512 tokens of the kind of a set, without the chat format; prose of several documents.

        Raises `InputError` without a tokenizer, and for texts that are too short.
        """
        if self.tokenizer is None:
            raise InputError("the model has no tokenizer, so there are no long texts")
        length = min(LONG_TOKENS, trained_length(self.model) or LONG_TOKENS)
        kind = next(kind for kind in self.kinds if texts.name.startswith(kind))
        ids = self._as_tokenized(self._windows(kind, length, LONG_TEXTS))
        return TextSet(f"long {kind}", f"{len(ids)} texts of {length} tokens: {kind}", ids, ids[:0])

    def _windows(self, kind: str, width: int, count: int) -> Tensor:
        """Windows of `width` tokens without added ones, from as many documents as possible."""
        if self.documents is not None:
            return _document_windows(self.tokenizer, self.documents, width, count)
        if kind == CODE:
            return natural_windows(self.tokenizer, width, count, self.seed, corpus="python").input_ids
        # No document of the prose is long enough for long texts.
        windows = "within" if width <= TOKENS else "packed"
        prose = natural_windows(self.tokenizer, width, count, self.seed, corpus=PROSE, split="all", windows=windows)
        return prose.input_ids

    def _as_tokenized(self, plain: Tensor) -> Tensor:
        """The windows with the first and last tokens that the tokenizer adds to a text, cut to the same length."""
        ids = plain
        if (count := added_bos(self.tokenizer)) and (token := first_token_id(self.tokenizer)) is not None:
            start = torch.full_like(plain[:, :count], token)
            ids = torch.cat([start, plain[:, :-count]], 1)
        if (end := last_token_id(self.tokenizer)) is not None:
            ids = torch.cat([ids[:, :-1], torch.full_like(ids[:, :1], end)], 1)
        return ids

    def _in_chat(self, plain: Tensor) -> Tensor:
        """The windows as users' messages, each cut to the length of a text; shorter ones are dropped."""
        chats = [[{"role": "user", "content": text}] for text in self.tokenizer.batch_decode(plain)]
        rows = in_chat(self.tokenizer, chats, tokenize=True, return_dict=False)
        kept = [row[: self.length] for row in rows if len(row) >= self.length]
        return torch.tensor(kept, dtype=torch.long).reshape(len(kept), self.length)

    def _template_tokens(self) -> int | None:
        """How many tokens the chat template adds; None without a template that can be filled, or if it fills more than
        half a text.
        """
        if not getattr(self.tokenizer, "chat_template", None) or Stream.of(self.model).stack != "decoder":
            return None
        if _template_fault(self.tokenizer):
            return None
        try:
            count = len(in_chat(self.tokenizer, [{"role": "user", "content": ""}], return_dict=False))
        except InputError:  # some refuse an empty message
            count = len(in_chat(self.tokenizer, [{"role": "user", "content": "a"}], return_dict=False))
        return count if count <= self.length // 2 else None

    def _random(self, why: str) -> TextSet:
        """Ordinary tokens at random, for the reason `why`."""
        generator = seeded("check", self.seed)
        ordinary = ordinary_tokens(None, self.vocabulary)
        ids = ordinary[torch.randint(len(ordinary), (self.count + CALIBRATION, self.length), generator=generator)]
        description = f"{self.count} rows of {self.length} random tokens, since {why}"
        return TextSet("random tokens", description, ids[: self.count], ids[self.count :])


def _template_fault(tokenizer: Any) -> str:
    if not getattr(tokenizer, "chat_template", None):
        return ""
    try:
        in_chat(tokenizer, [{"role": "user", "content": "a"}])
    except InputError as error:
        return str(error)
    return ""


def added_bos(tokenizer: Any) -> int:
    """How many BOS (or [CLS]) the tokenizer puts in front of a text: usually none or one, two if it is set up twice."""
    return leading(first_token_id(tokenizer), encoded_letter(tokenizer))


def leading(token: int | None, ids: Sequence[int]) -> int:
    """How many of the first ids are `token`."""
    return next((place for place, other in enumerate(ids) if other != token), len(ids))


def _digest(*values: Tensor) -> str:
    digest = hashlib.sha256()
    for value in values:
        # As bytes, since numpy has no bfloat16.
        raw = value.cpu().contiguous().view(-1).view(torch.uint8)
        digest.update(str(tuple(value.shape)).encode() + raw.numpy().tobytes())
    return digest.hexdigest()


def _document_windows(tokenizer: Any, documents: Sequence[str], width: int, count: int) -> Tensor:
    """Windows of `width` tokens: the first of each document, then the second ones. Raises `InputError` for none."""
    encoded = encode(tokenizer, list(documents)) if documents else []
    by_document = [[ids[start : start + width] for start in range(0, len(ids) - width + 1, width)] for ids in encoded]
    most = max(map(len, by_document), default=0)
    rows = [windows[number] for number in range(most) for windows in by_document if number < len(windows)]
    if not rows:
        longest = max(map(len, encoded), default=0)
        raise InputError(f"the longest text has {longest} tokens, and {width} are asked for: give longer texts")
    return torch.tensor(rows[:count])
