"""From a configuration to what training needs: tokeniser, windows and fingerprint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sinkscope.data.config import DataConfig
from sinkscope.data.corpora import load_corpus
from sinkscope.data.encoding import encode_corpus
from sinkscope.data.tokenizer import with_bos
from sinkscope.data.windows import SomeWindows, Windows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True)
class PreparedData:
    """What a training run reads, and the fingerprint (plain JSON) that its record keeps.

    `tokenizer` is the one to save with the model: it puts a BOS before a text exactly if training did.
    """

    tokenizer: PreTrainedTokenizerFast
    train: Windows | SomeWindows
    validation: Windows
    fingerprint: dict[str, Any]


def prepare(config: DataConfig, context: int, seed: int = 0) -> PreparedData:
    """Read, split, encode and cut a corpus into windows of `context` tokens.

    `seed` draws what is random in `config.interventions`; which documents are for validation is `config.split_seed`'s.
    The first call on a corpus encodes it (`python`: half a minute on two cores), later ones map the cache.
    Raises `InputError` for whatever is wrong with corpus, tokeniser or context.
    """
    encoded = encode_corpus(load_corpus(config.corpus, config.max_characters), config)
    tokenizer = with_bos(encoded.tokenizer, add=config.bos == "fixed")

    def cut(tokens: np.ndarray, part: str) -> Windows:
        return Windows(
            _with_bos_before_documents(tokens, tokenizer) if config.document_bos else tokens,
            context,
            tokenizer.bos_token_id if config.bos == "fixed" else None,
            interventions=config.interventions,
            vocabulary=len(tokenizer),
            seed=seed,
            ends_document=tokenizer.eos_token_id if config.packing == "intra_document" else None,
            what=f"the {part} text of the corpus '{config.corpus}'",
        )

    train = cut(encoded.train, "training")
    return PreparedData(
        tokenizer=tokenizer,
        train=train if config.train_share == 1 else SomeWindows(train, config.train_share, config.split_seed),
        validation=cut(encoded.validation, "validation"),
        fingerprint=encoded.fingerprint,
    )


def _with_bos_before_documents(tokens: np.ndarray, tokenizer: PreTrainedTokenizerFast) -> np.ndarray:
    """The stream with a BOS at its beginning and after every EOS but the last; held in memory."""
    starts = np.flatnonzero(np.asarray(tokens[:-1]) == tokenizer.eos_token_id) + 1
    return np.insert(tokens, [0, *starts], tokenizer.bos_token_id)
