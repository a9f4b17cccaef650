"""From documents to token files: encoded once, kept in the cache, mapped into memory."""

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

from sinkscope.data.config import DataConfig
from sinkscope.data.corpora import Corpus, Document, Split, TextDigest, shuffled, split_names
from sinkscope.data.mixing import Source
from sinkscope.data.tokenizer import (
    encode,
    encode_conversations,
    load_fast_tokenizer,
    parse_tokenizer,
    tokenizer_digest,
    train_bpe,
)
from sinkscope.data.windows import Stream
from sinkscope.files import cache_dir, cached_folder, write_json
from sinkscope.live import bar

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

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
    split: Split
    train: Stream
    validation: Stream
    fingerprint: dict[str, Any]


def encode_corpus(
    source: Source, config: DataConfig, tokenizer: PreTrainedTokenizerFast | None = None
) -> EncodedCorpus:
    """Encode a corpus, or map what an earlier call with the same text and settings left in the cache.

    The text was read for its sha256 (`python`: about a second), so that a changed file is a new entry. A part of a
    mixture takes over the `tokenizer` of the whole; one to be trained sees documents of the training part alone. Raises
    `InputError` for a tokenizer that cannot be used, a document that is not text or a cache that cannot be written.
    """
    corpus, text, split = source.corpus, source.text, source.split
    given = tokenizer
    if given is None and not parse_tokenizer(config.tokenizer):
        given = load_fast_tokenizer(config.tokenizer)
    folder = cache_dir() / "corpora" / _key(source, config, given)

    def build(draft: Path) -> None:
        logger.info("encoding the corpus '%s' (%d characters); the next run maps it", corpus.name, text.characters)
        tokenizer = given or _train_tokenizer(corpus, split, config)
        tokenizer.save_pretrained(draft / "tokenizer")
        if text.characters < LONG:
            return write_json(draft / "parts.json", _write_parts(corpus, split, tokenizer, draft))
        with bar(f"encoding the corpus '{corpus.name}' (once; later runs reuse it)", text.characters) as advance:
            return write_json(draft / "parts.json", _write_parts(corpus, split, tokenizer, draft, advance))

    cached_folder(folder, build)
    stored = json.loads((folder / "parts.json").read_text(encoding="utf-8"))
    dtype = np.dtype(stored["dtype"])
    return EncodedCorpus(
        tokenizer=given or load_fast_tokenizer(str(folder / "tokenizer")),
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


def _key(source: Source, config: DataConfig, given: PreTrainedTokenizerFast | None) -> str:
    corpus = source.corpus
    parts: dict[str, Any] = {
        "layout": LAYOUT,
        "text": source.text.hexdigest(),
        "tokenizer": tokenizer_digest(given) if given else [config.tokenizer, TOKENIZER_CHARACTERS],
        "eos": given.eos_token_id if given else None,
        "split": [config.validation_share, config.split_seed],
        "tokenizers": version("tokenizers"),
    }
    if not _is_plain(source, config):
        parts["documents"] = [source.split.train, source.split.validation]
    if corpus.chat:
        parts["chat"] = True
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


def _is_plain(source: Source, config: DataConfig) -> bool:
    """Whether the corpus alone, with the share and the seed, decides which of its documents are where."""
    names = source.corpus.names
    return len(names) > 1 and source.split == split_names(names, config.validation_share, config.split_seed)


def _train_tokenizer(corpus: Corpus, split: Split, config: DataConfig) -> PreTrainedTokenizerFast:
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
    split: Split,
    tokenizer: PreTrainedTokenizerFast,
    draft: Path,
    advance: Callable[[float], None] = lambda characters: None,
) -> dict[str, Any]:
    """Write `train.bin` and `validation.bin`; return the facts about them and the tokenizer.

    `advance` is called with the characters of each batch of documents.
    """
    dtype = np.dtype(np.uint16 if len(tokenizer) <= 1 << 16 else np.uint32)
    about = {"tokenizer_sha256": tokenizer_digest(tokenizer), "vocabulary": len(tokenizer), "dtype": dtype.name}
    return about | {
        name: _write_part(corpus.documents(names), tokenizer, draft / f"{name}.bin", dtype, advance, chat=corpus.chat)
        for name, names in (("train", split.train), ("validation", split.validation))
    }


def _write_part(
    documents: Iterable[Document],
    tokenizer: PreTrainedTokenizerFast,
    path: Path,
    dtype: np.dtype,
    advance: Callable[[float], None],
    *,
    chat: bool,
) -> dict[str, Any]:
    """Write one part's tokens; return its documents, characters and tokens, and the sha256 of text and of tokens.

    Tokens are hashed as little-endian numbers, as they lie in the file. Of conversations also write, and count, which
    tokens are scored: those of responses and the EOS behind them.
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


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Documents in groups of at least `BATCH_CHARACTERS`, which keep every core busy at a bounded memory."""
    batch: list[Document] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += len(document.text)
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _stream(folder: Path, part: str, dtype: np.dtype, chat: bool) -> Stream:
    path = folder / f"{part}.bin"
    return Stream(_map(path, dtype), scored=_map(path.with_suffix(SCORED), np.dtype(np.uint8)) if chat else None)


def _map(path: Path, dtype: np.dtype) -> np.ndarray:
    if path.stat().st_size == 0:  # which a memory map cannot be
        return np.empty(0, dtype)
    return np.memmap(path, dtype.newbyteorder("<"), mode="r")
