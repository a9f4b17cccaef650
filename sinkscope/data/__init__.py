"""Text for models: corpora, tokenizers, windows of tokens, and the inputs that models are measured on."""

from sinkscope.data.config import DataConfig
from sinkscope.data.corpora import Corpus, TextDocument, domains, is_chat, load_corpus, parse_corpus, texts
from sinkscope.data.measuring_inputs import (
    Cut,
    Inputs,
    WindowKind,
    as_chat,
    build_inputs,
    corpus_digest,
    cut,
    natural_windows,
    ordinary_tokens,
    text_digest,
)
from sinkscope.data.model_inputs import InputReading, corpus_of, fed, reading, start_token, try_out, vocabulary_of
from sinkscope.data.prepared import PreparedData, encode_data, prepare
from sinkscope.data.tokenizer import (
    adds_first_token,
    as_encoder,
    bos_remark,
    load_fast_tokenizer,
    parse_tokenizer,
    vocabulary_size,
    with_mask,
)
from sinkscope.data.training_order import MixedWindows, TrainingOrder
from sinkscope.data.windows import UNSCORED, FixedToken, RandomTokens, SomeWindows, Window, Windows, seeded
from sinkscope.registry import moved

__all__ = [
    "UNSCORED",
    "Corpus",
    "Cut",
    "DataConfig",
    "FixedToken",
    "InputReading",
    "Inputs",
    "MixedWindows",
    "PreparedData",
    "RandomTokens",
    "SomeWindows",
    "TextDocument",
    "TrainingOrder",
    "Window",
    "WindowKind",
    "Windows",
    "adds_first_token",
    "as_chat",
    "as_encoder",
    "bos_remark",
    "build_inputs",
    "corpus_digest",
    "corpus_of",
    "cut",
    "domains",
    "encode_data",
    "fed",
    "is_chat",
    "load_corpus",
    "load_fast_tokenizer",
    "natural_windows",
    "ordinary_tokens",
    "parse_corpus",
    "parse_tokenizer",
    "prepare",
    "reading",
    "seeded",
    "start_token",
    "text_digest",
    "texts",
    "try_out",
    "vocabulary_of",
    "vocabulary_size",
    "with_mask",
]

__getattr__ = moved(
    __name__, {"Document": "sinkscope.data.TextDocument", "Reading": "sinkscope.data.InputReading"}
)  # old names, for one release
