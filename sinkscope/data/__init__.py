"""Text for models: corpora, tokenisers, windows of tokens, and the inputs that models are measured on."""

from sinkscope.data.chat import as_chat
from sinkscope.data.config import DataConfig
from sinkscope.data.corpora import load_corpus
from sinkscope.data.corpus import Corpus, Document
from sinkscope.data.inputs import Inputs, build_inputs
from sinkscope.data.interventions import FixedToken, RandomTokens
from sinkscope.data.mixture import MixedWindows
from sinkscope.data.order import TrainingOrder
from sinkscope.data.prepared import PreparedData, prepare
from sinkscope.data.windows import SomeWindows, Windows

__all__ = [
    "Corpus",
    "DataConfig",
    "Document",
    "FixedToken",
    "Inputs",
    "MixedWindows",
    "PreparedData",
    "RandomTokens",
    "SomeWindows",
    "TrainingOrder",
    "Windows",
    "as_chat",
    "build_inputs",
    "load_corpus",
    "prepare",
]
