"""The zoo: attention operations as values, their masks, the reference, the fast paths and the catalogue."""

from sinkscope.attention.catalog import CATALOG, ENTRIES, Entry, name_of
from sinkscope.attention.functional import Explanation, attend, explain
from sinkscope.attention.learned import Learned
from sinkscope.attention.masks import Alone, Causal, Document, Full, Mask, Prefix, Window, Without
from sinkscope.attention.normalizers import Sigmoid, Softmax
from sinkscope.attention.operation import Attended, Operation, Weights
from sinkscope.attention.outputs import ValueBias
from sinkscope.attention.similarity import DotProduct
from sinkscope.attention.slots import KeySlot, LogitSlot, SlotTerms, ZeroSlot
from sinkscope.attention.spec import AttentionSpec, resolve
from sinkscope.attention.tokens import Tokens
from sinkscope.attention.visibility import Visibility

__all__ = [
    "CATALOG",
    "ENTRIES",
    "Alone",
    "Attended",
    "AttentionSpec",
    "Causal",
    "Document",
    "DotProduct",
    "Entry",
    "Explanation",
    "Full",
    "KeySlot",
    "Learned",
    "LogitSlot",
    "Mask",
    "Operation",
    "Prefix",
    "Sigmoid",
    "SlotTerms",
    "Softmax",
    "Tokens",
    "ValueBias",
    "Visibility",
    "Weights",
    "Window",
    "Without",
    "ZeroSlot",
    "attend",
    "explain",
    "name_of",
    "resolve",
]
