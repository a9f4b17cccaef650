"""Slots: what a query may attend to besides tokens.

Every slot is an extra key that all queries see. Its logit is  scaling · q·k* + b  and its value v*; each of k*, b,
v* may be absent (zero). That one form serves the reference, the fast path (one more key, and one more channel for b)
and the observers.
"""

from typing import Annotated

from sinkscope.attention.pieces import OpenTo
from sinkscope.attention.pieces import Slot as SlotPiece
from sinkscope.attention.slots.keys import FixedValue, KeySlot
from sinkscope.attention.slots.latent import LatentSlots
from sinkscope.attention.slots.logits import LogitSlot, SuffixSlot, ZeroSlot
from sinkscope.attention.slots.terms import SlotTerms

BuiltIn = ZeroSlot | LogitSlot | SuffixSlot | KeySlot | LatentSlots
Slot = Annotated[BuiltIn | SlotPiece, OpenTo("slot", BuiltIn, SlotPiece)]

__all__ = [
    "FixedValue",
    "KeySlot",
    "LatentSlots",
    "LogitSlot",
    "Slot",
    "SlotPiece",
    "SlotTerms",
    "SuffixSlot",
    "ZeroSlot",
]
