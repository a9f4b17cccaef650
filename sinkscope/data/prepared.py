"""From a configuration to what training needs: tokenizer, windows and fingerprint."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import Dataset

from sinkscope.data.config import DataConfig
from sinkscope.data.corpora import (
    Corpus,
    CorpusSplit,
    TextDigest,
    TextDocument,
    chat_template,
    digest,
    is_chat,
    is_corpus,
    load_corpus,
    shuffled,
    split_names,
)
from sinkscope.data.tokenizer import (
    encode,
    encode_conversations,
    load_fast_tokenizer,
    parse_tokenizer,
    tokenizer_digest,
    train_bpe,
    vocabulary_size,
    with_bos,
)
from sinkscope.data.training_order import MixedWindows
from sinkscope.data.windows import SomeWindows, TokenStream, Window, Windows, framed
from sinkscope.errors import InputError, unknown
from sinkscope.files import cache_dir, cached_folder, write_json
from sinkscope.live import bar

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


# The parts of a mixture, and which of their documents no part may train on.
#
# Parts may overlap: a corpus with a folder of its own, two globs, two parts of the corpus `python`. One split by
# content holds for all of them: a text in the validation part of one part, or of the corpus, is in no part's training.

PYTHON = "python"  # and its parts: one source, whose documents have the same names in all of them


@dataclass(frozen=True, eq=False)
class CorpusSource:
    """A corpus that was read once: its digest, and its split."""

    corpus: Corpus
    text: TextDigest
    split: CorpusSplit

    @classmethod
    def of(cls, corpus: Corpus, config: DataConfig, split: CorpusSplit | None = None) -> CorpusSource:
        """Read a corpus; `split`: of the corpus that it is a domain of. Raises `InputError` where it has no two
        documents to split.
        """
        names = split or split_names(corpus.names, config.validation_share, config.split_seed)
        return cls(corpus, digest(corpus), names if split is None else _of_domain(names, corpus))

    def validated(self) -> set[bytes | str]:
        """What identifies the validation documents: their contents and, in parts of `python`, where they come from."""
        contents: set[bytes | str] = {
            self.text.contents[name] for name in self.split.validation if name in self.text.contents
        }
        return contents | {_origin(name) for name in self.split.validation} if self._is_python else contents

    def without(self, held: set[bytes | str]) -> CorpusSource:
        """The same source without training documents that `held` identifies."""

        def is_held(name: str) -> bool:
            return self.text.contents.get(name) in held or (self._is_python and _origin(name) in held)

        return CorpusSource(self.corpus, self.text, self.split.training_without(is_held))

    @property
    def _is_python(self) -> bool:
        return self.corpus.name.partition(":")[0].partition(",")[0] == PYTHON


def apart(parts: Iterable[CorpusSource], whole: CorpusSource) -> list[CorpusSource]:
    """The parts of a mixture over the corpus `whole`, without the texts that are for validation anywhere."""
    listed = list(parts)
    held = whole.validated().union(*(part.validated() for part in listed))
    return [part.without(held) for part in listed]


def _of_domain(split: CorpusSplit, domain: Corpus) -> CorpusSplit:
    names = set(domain.names)
    return CorpusSplit(*(tuple(name for name in part if name in names) for part in (split.train, split.validation)))


def _origin(name: str) -> str:
    """The source file of a document of `python`; its conversations add a number: `torch/fx/graph.py#0007`."""
    return f"python/{name.partition('#')[0]}"


logger = logging.getLogger(__name__)

LAYOUT = 1  # to be raised when the files of an entry, or how they are made, change
SCORED = ".scored"  # of the file that tells which tokens count
BATCH_CHARACTERS = 4_000_000
LONG = 10_000_000  # characters whose encoding takes long enough for a bar
# Every pair that a vocabulary of some thousands merges stands in this many characters a hundred times over: with all
# 65 million of the corpus `python` the tokens became 0.2 % fewer and training took half as long again.
TOKENIZER_CHARACTERS = 32_000_000


@dataclass(frozen=True)
class EncodedCorpus:
    """Both parts as streams in read-only memory maps, uint16 or uint32, each document followed by one EOS."""

    tokenizer: PreTrainedTokenizerFast
    split: CorpusSplit
    train: TokenStream
    validation: TokenStream
    fingerprint: dict[str, Any]


def encode_corpus(
    source: CorpusSource, config: DataConfig, tokenizer: PreTrainedTokenizerFast | None = None
) -> EncodedCorpus:
    """Encode a corpus, or map what an earlier call with the same text and settings left in the cache.

    The text was read for its sha256 (`python`: about a second), so that a changed file is a new entry. A part of a
    mixture takes over the `tokenizer` of the whole; one to be trained sees documents of the training part alone. Raises
    `InputError` for a tokenizer that cannot be used, a document that is not text or a cache that cannot be written.
    """
    corpus, text, split = source.corpus, source.text, source.split
    passed = tokenizer
    if passed is None and not parse_tokenizer(config.tokenizer):
        passed = load_fast_tokenizer(config.tokenizer)
    folder = cache_dir() / "corpora" / _key(source, config, passed)

    def build(draft: Path) -> None:
        logger.info("encoding the corpus '%s' (%d characters); the next run maps it", corpus.name, text.characters)
        tokenizer = passed or _train_tokenizer(corpus, split, config)
        tokenizer.save_pretrained(draft / "tokenizer")
        if text.characters < LONG:
            return write_json(draft / "parts.json", _write_parts(corpus, split, tokenizer, draft))
        with bar(f"encoding the corpus '{corpus.name}' (once; later runs reuse it)", text.characters) as advance:
            return write_json(draft / "parts.json", _write_parts(corpus, split, tokenizer, draft, advance))

    cached_folder(folder, build)
    stored = json.loads((folder / "parts.json").read_text(encoding="utf-8"))
    dtype = np.dtype(stored["dtype"])
    return EncodedCorpus(
        tokenizer=passed or load_fast_tokenizer(str(folder / "tokenizer")),
        split=split,
        train=_stream(folder, "train", dtype, corpus.chat),
        validation=_stream(folder, "validation", dtype, corpus.chat),
        fingerprint=_describe(corpus, text) | stored,
    )


def _describe(corpus: Corpus, text: TextDigest) -> dict[str, Any]:
    return {
        "corpus": corpus.name,
        "truncated": corpus.truncated,
        "documents": text.documents,
        "characters": text.characters,
        "text_sha256": text.hexdigest(),
        "versions": {**corpus.versions, "tokenizers": version("tokenizers")},
    }


def _key(source: CorpusSource, config: DataConfig, tokenizer: PreTrainedTokenizerFast | None) -> str:
    corpus = source.corpus
    parts: dict[str, Any] = {
        "layout": LAYOUT,
        "text": source.text.hexdigest(),
        "tokenizer": tokenizer_digest(tokenizer) if tokenizer else [config.tokenizer, TOKENIZER_CHARACTERS],
        "eos": tokenizer.eos_token_id if tokenizer else None,
        "split": [config.validation_share, config.split_seed],
        "tokenizers": version("tokenizers"),
    }
    # The usual split follows from share and seed; any other is named document by document.
    if not _is_plain(source, config):
        parts["documents"] = [source.split.train, source.split.validation]
    if corpus.chat:
        parts["chat"] = True
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


def _is_plain(source: CorpusSource, config: DataConfig) -> bool:
    """Whether the split of documents depends only on the corpus, the share and the seed."""
    names = source.corpus.names
    return len(names) > 1 and source.split == split_names(names, config.validation_share, config.split_seed)


def _train_tokenizer(corpus: Corpus, split: CorpusSplit, config: DataConfig) -> PreTrainedTokenizerFast:
    vocabulary = parse_tokenizer(config.tokenizer)
    assert vocabulary is not None
    entries = {entry.name: entry for entry in corpus.entries}
    texts = (entries[name].read() for name in shuffled(split.train, config.split_seed))
    return train_bpe(_first_characters(texts, TOKENIZER_CHARACTERS), vocabulary)


def _first_characters(texts: Iterable[str], limit: int) -> Iterator[str]:
    taken = 0
    for text in texts:
        yield text
        taken += len(text)
        if taken >= limit:
            return


def _write_parts(
    corpus: Corpus,
    split: CorpusSplit,
    tokenizer: PreTrainedTokenizerFast,
    draft: Path,
    advance: Callable[[float], None] = lambda characters: None,
) -> dict[str, Any]:
    """Write `train.bin` and `validation.bin`; return the facts about them and the tokenizer.

    `advance` is called with the characters of each batch of documents.
    """
    vocabulary = vocabulary_size(tokenizer)
    dtype = np.dtype(np.uint16 if vocabulary <= 1 << 16 else np.uint32)
    about = {"tokenizer_sha256": tokenizer_digest(tokenizer), "vocabulary": vocabulary, "dtype": dtype.name}
    return about | {
        name: _write_part(corpus.documents(names), tokenizer, draft / f"{name}.bin", dtype, advance, chat=corpus.chat)
        for name, names in (("train", split.train), ("validation", split.validation))
    }


def _write_part(
    documents: Iterable[TextDocument],
    tokenizer: PreTrainedTokenizerFast,
    path: Path,
    dtype: np.dtype,
    advance: Callable[[float], None],
    *,
    chat: bool,
) -> dict[str, Any]:
    """Write one part's tokens; return its documents, characters and tokens, and the sha256 of text and of tokens.

    Tokens are hashed as little-endian numbers, as they lie in the file. For conversations, also write and count which
    tokens are scored: those of responses and the EOS after each.
    """
    text, tokens, count, scored = TextDigest(), hashlib.sha256(), 0, 0
    with path.open("wb") as stream, ExitStack() as more:
        marks = more.enter_context(path.with_suffix(SCORED).open("wb")) if chat else None
        for batch in _batches(documents):
            texts = [document.text for document in batch]
            encoded, in_response = encode_conversations(tokenizer, texts) if chat else (encode(tokenizer, texts), None)
            for number, (document, ids) in enumerate(zip(batch, encoded, strict=True)):
                text.add(document)
                raw = np.array([*ids, tokenizer.eos_token_id], dtype.newbyteorder("<")).tobytes()
                tokens.update(raw)
                stream.write(raw)
                count += len(ids) + 1
                if marks is not None and in_response is not None:
                    marks.write(bytes([*in_response[number], True]))
                    scored += sum(in_response[number]) + 1
            advance(sum(map(len, texts)))
    about = {
        "documents": text.documents,
        "characters": text.characters,
        "tokens": count,
        "text_sha256": text.hexdigest(),
        "tokens_sha256": tokens.hexdigest(),
    }
    return about | {"scored": scored} if chat else about


def _batches(documents: Iterable[TextDocument]) -> Iterator[list[TextDocument]]:
    """Documents in groups of at least `BATCH_CHARACTERS`, which keep every core busy at a bounded memory."""
    batch: list[TextDocument] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += len(document.text)
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _stream(folder: Path, part: str, dtype: np.dtype, chat: bool) -> TokenStream:
    path = folder / f"{part}.bin"
    return TokenStream(_map(path, dtype), scored=_map(path.with_suffix(SCORED), np.dtype(np.uint8)) if chat else None)


def _map(path: Path, dtype: np.dtype) -> np.ndarray:
    if path.stat().st_size == 0:  # which a memory map cannot be
        return np.empty(0, dtype)
    return np.memmap(path, dtype.newbyteorder("<"), mode="r")


@dataclass(frozen=True)
class PreparedData:
    """What a training run reads, and the fingerprint (plain JSON) that its record keeps.

    `tokenizer` is the one to save with the model: it puts a BOS before a text exactly if training did.
    """

    tokenizer: PreTrainedTokenizerFast
    train: Dataset[Window]
    validation: Dataset[Window]
    fingerprint: dict[str, Any]


@dataclass(frozen=True)
class EncodedData:
    """The corpus of a configuration, and the parts of its mixture by name, encoded."""

    whole: EncodedCorpus
    parts: dict[str, EncodedCorpus]

    def fingerprint(self, config: DataConfig) -> dict[str, Any]:
        """Plain JSON about text and tokens; a mixture adds its parts, with their weights but without their names."""
        about = dict(self.whole.fingerprint)
        if self.parts:
            kept = ("characters", "text_sha256", "train")
            about["mixture"] = [
                {"weight": config.mixture[name]} | {key: part.fingerprint[key] for key in kept}
                for name, part in self.parts.items()
            ]
        return about


def encode_data(config: DataConfig) -> EncodedData:
    """Read and encode all that a configuration names, or map it from the cache.

    No part of a mixture trains on a text that another part, or the corpus, keeps for validation. Raises `InputError`
    for what is wrong with a corpus or the tokenizer, and for unknown domains.
    """
    corpus = load_corpus(config.corpus, config.max_characters)
    domains = corpus.domains()
    for name in config.mixture:
        if not is_corpus(name) and name not in domains:
            if not domains:
                raise InputError(f"data.mixture: the corpus '{config.corpus}' has no folders, hence no domain '{name}'")
            raise unknown("domain in data.mixture", name, domains)
    source = CorpusSource.of(corpus, config)
    whole = encode_corpus(source, config)

    def read(name: str) -> CorpusSource:
        if is_corpus(name):
            return CorpusSource.of(load_corpus(name, config.max_characters), config)
        return CorpusSource.of(domains[name], config, source.split)

    sources = apart(map(read, config.mixture), source)
    parts = {
        name: encode_corpus(part, config, whole.tokenizer) for name, part in zip(config.mixture, sources, strict=True)
    }
    by_text = sorted(parts, key=lambda name: str(parts[name].fingerprint["text_sha256"]))  # names may be local paths
    return EncodedData(whole, {name: parts[name] for name in by_text})


def prepare(config: DataConfig, context: int, seed: int = 0, *, number_documents: bool = False) -> PreparedData:
    """Read, split, encode and cut a corpus into windows of `context` tokens.

    `seed` draws what is random in `config.interventions`; which documents are for validation is `config.split_seed`'s.
    Windows number their documents where packing or `number_documents` needs it.
    The first call on a corpus encodes it (`python`: half a minute on two cores), later ones map the cache.
    Raises `InputError` for whatever is wrong with corpus, tokenizer or context.
    """
    encoded = encode_data(config)
    tokenizer = with_bos(encoded.whole.tokenizer, add=config.bos == "fixed")
    if config.document_bos and tokenizer.bos_token_id is None:
        raise InputError("data.document_bos: the tokenizer has no BOS token to put before documents")
    if is_chat(config.corpus):
        tokenizer.chat_template = chat_template(tokenizer.bos_token if config.bos == "fixed" else None)

    def cut(stream: TokenStream, what: str, part: str) -> Windows:
        text = framed(
            stream if config.labels == "responses" else TokenStream(stream.tokens),
            int(tokenizer.eos_token_id),
            bos_id=tokenizer.bos_token_id if config.document_bos else None,
            keep_eos=config.document_eos,
            find_starts=number_documents or config.packing == "intra_document",
            score_first=config.first_tokens == "scored",
        )
        return Windows(
            text,
            context,
            tokenizer.bos_token_id if config.bos == "fixed" else None,
            interventions=config.interventions,
            vocabulary=vocabulary_size(tokenizer),
            seed=seed,
            part=part,
            what=what,
        )

    def some(part: EncodedCorpus, what: str, number: int | None = None) -> Windows | SomeWindows:
        windows = cut(part.train, f"the training text of {what}", "train" if number is None else f"train {number}")
        share = config.train_share
        return windows if share == 1 else SomeWindows(windows, share, config.split_seed)

    named = {name: f"the {'corpus' if is_corpus(name) else 'domain'} '{name}'" for name in encoded.parts}
    parts = [some(part, named[name], number) for number, (name, part) in enumerate(encoded.parts.items())]
    return PreparedData(
        tokenizer=tokenizer,
        train=MixedWindows(parts, [config.mixture[name] for name in encoded.parts])
        if parts
        else some(encoded.whole, f"the corpus '{config.corpus}'"),
        validation=cut(encoded.whole.validation, f"the validation text of the corpus '{config.corpus}'", "validation"),
        fingerprint=encoded.fingerprint(config),
    )
