"""From documents to token files: encoded once, kept in the cache, mapped into memory."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sinkscope.data.cache import cached_folder
from sinkscope.data.config import DataConfig
from sinkscope.data.corpus import Corpus, Document, TextDigest, digest
from sinkscope.data.split import Split, shuffled, split_names
from sinkscope.data.tokenizer import encode, load_fast_tokenizer, parse_tokenizer, tokenizer_digest, train_bpe
from sinkscope.files import cache_dir, write_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

logger = logging.getLogger(__name__)

LAYOUT = 1  # to be raised when the files of an entry, or how they are made, change
BATCH_CHARACTERS = 4_000_000
# Every pair that a vocabulary of some thousands merges stands in this many characters a hundred times over: with all
# 65 million of the corpus `python` the tokens became 0.2 % fewer and training took half as long again.
TOKENIZER_CHARACTERS = 32_000_000


@dataclass(frozen=True)
class EncodedCorpus:
    """Tokens of both parts, (n,) uint16 or uint32 in read-only memory maps, each document followed by one EOS."""

    tokenizer: PreTrainedTokenizerFast
    train: np.ndarray
    validation: np.ndarray
    fingerprint: dict[str, Any]


def encode_corpus(corpus: Corpus, config: DataConfig) -> EncodedCorpus:
    """Encode a corpus, or map what an earlier call with the same text and settings left in the cache.

    The text is read each time for its sha256 (`python`: about a second), so that a changed file is a new entry. A
    tokeniser to be trained sees documents of the training part alone. Raises `InputError` for a corpus that cannot be
    split, a tokeniser that cannot be used, a document that is not text or a cache that cannot be written.
    """
    split = split_names(corpus.names, config.validation_share, config.split_seed)
    text = digest(corpus)
    given = None if parse_tokenizer(config.tokenizer) else load_fast_tokenizer(config.tokenizer)
    folder = cache_dir() / "corpora" / _key(text, config, given)

    def build(draft: Path) -> None:
        logger.info("encoding the corpus '%s' (%d documents), once", corpus.name, text.documents)
        tokenizer = given or _train_tokenizer(corpus, split, config)
        tokenizer.save_pretrained(draft / "tokenizer")
        write_json(draft / "parts.json", _write_parts(corpus, split, tokenizer, draft))

    cached_folder(folder, build)
    stored = json.loads((folder / "parts.json").read_text(encoding="utf-8"))
    dtype = np.dtype(stored["dtype"])
    return EncodedCorpus(
        tokenizer=given or load_fast_tokenizer(str(folder / "tokenizer")),
        train=_map(folder / "train.bin", dtype),
        validation=_map(folder / "validation.bin", dtype),
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


def _key(text: TextDigest, config: DataConfig, given: PreTrainedTokenizerFast | None) -> str:
    parts = {
        "layout": LAYOUT,
        "text": text.hexdigest(),
        "tokenizer": tokenizer_digest(given) if given else [config.tokenizer, TOKENIZER_CHARACTERS],
        "eos": given.eos_token_id if given else None,
        "split": [config.validation_share, config.split_seed],
        "tokenizers": version("tokenizers"),
    }
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


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


def _write_parts(corpus: Corpus, split: Split, tokenizer: PreTrainedTokenizerFast, draft: Path) -> dict[str, Any]:
    """Write `train.bin` and `validation.bin`; return what there is to say about them and the tokeniser."""
    dtype = np.dtype(np.uint16 if len(tokenizer) <= 1 << 16 else np.uint32)
    about = {"tokenizer_sha256": tokenizer_digest(tokenizer), "vocabulary": len(tokenizer), "dtype": dtype.name}
    return about | {
        name: _write_part(corpus.documents(names), tokenizer, draft / f"{name}.bin", dtype)
        for name, names in (("train", split.train), ("validation", split.validation))
    }


def _write_part(
    documents: Iterable[Document], tokenizer: PreTrainedTokenizerFast, path: Path, dtype: np.dtype
) -> dict[str, Any]:
    """Write one part's tokens; return its documents, characters and tokens, and the sha256 of text and of tokens.

    Tokens are hashed as little-endian numbers, as they lie in the file.
    """
    text, tokens, count = TextDigest(), hashlib.sha256(), 0
    with path.open("wb") as stream:
        for batch in _batches(documents):
            for document, ids in zip(batch, encode(tokenizer, [document.text for document in batch]), strict=True):
                text.add(document)
                raw = np.array([*ids, tokenizer.eos_token_id], dtype.newbyteorder("<")).tobytes()
                tokens.update(raw)
                stream.write(raw)
                count += len(ids) + 1
    return {
        "documents": text.documents,
        "characters": text.characters,
        "tokens": count,
        "text_sha256": text.hexdigest(),
        "tokens_sha256": tokens.hexdigest(),
    }


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


def _map(path: Path, dtype: np.dtype) -> np.ndarray:
    if path.stat().st_size == 0:  # which a memory map cannot be
        return np.empty(0, dtype)
    return np.memmap(path, dtype.newbyteorder("<"), mode="r")
