"""Corpora: where text comes from, by name."""

from sinkscope.data.corpora.catalog import FORMS, is_chat, is_corpus, load_corpus, parse_corpus
from sinkscope.data.corpora.conversations import chat_template, responses
from sinkscope.data.corpora.corpus import Corpus, CorpusSplit, TextDigest, TextDocument, digest, shuffled, split_names
from sinkscope.data.corpora.text_files import domains, texts

__all__ = [
    "FORMS",
    "Corpus",
    "CorpusSplit",
    "TextDigest",
    "TextDocument",
    "chat_template",
    "digest",
    "domains",
    "is_chat",
    "is_corpus",
    "load_corpus",
    "parse_corpus",
    "responses",
    "shuffled",
    "split_names",
    "texts",
]
