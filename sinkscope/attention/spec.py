"""An attention operation as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from sinkscope.attention.combination import Combination
from sinkscope.attention.operation import Operation
from sinkscope.attention.pieces import Sizes, pieces
from sinkscope.attention.slots import SuffixSlot
from sinkscope.errors import InputError
from sinkscope.errors.invalid import in_one_line


@pieces
class AttentionSpec(Combination):
    """What turns q, k, v into an output, in this order:

    query_key (before rotation) → value_gate (before the cache) → temperature → similarity → first_key → decay → slots
    → normalizer → difference → aggregation → output. Pieces combine freely. A combination that has no meaning is
    refused when it is written, saying why. Values compare and hash by content, masks by what they allow, however they
    are spelled; `to_dict` / `from_dict` round-trip through JSON.
    """

    def within(self, context: int) -> AttentionSpec:
        """The same operation in a model with this maximum context, for pieces that depend on it and do not set it."""
        slots = tuple(
            replace(slot, context=context) if isinstance(slot, SuffixSlot) and slot.context is None else slot
            for slot in self.slots
        )
        return self if slots == self.slots else replace(self, slots=slots)

    def build(self, *, heads: int, kv_heads: int, head_dim: int, hidden_size: int, layer: int = 0) -> Operation:
        """The module that computes this operation and owns what it learns. Raises `InputError` for impossible sizes.

        Args:
            heads, kv_heads: Numbers of query heads and of key-value heads.
            head_dim: Channels of a head.
            hidden_size: Width of the attention block's input.
            layer: Number of the layer, counted from 0, on which some starting values depend.
        """
        return Operation(self, Sizes(heads, kv_heads, head_dim, hidden_size, layer))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-able data."""
        return _adapter().dump_python(self, mode="json", exclude_none=True)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AttentionSpec:
        """Back from plain data. Raises `InputError`, in one line with the field's name, for what does not fit."""
        if not isinstance(data, Mapping):
            raise InputError(f"attention = {data!r}: expected a spec's dict")
        try:
            return _adapter().validate_python(dict(data))
        except ValidationError as error:
            raise in_one_line(error, AttentionSpec, "attention") from error


def _adapter() -> Any:  # a TypeAdapter[AttentionSpec]; runtime checkers of annotations do not know that type
    return TypeAdapter(AttentionSpec)
