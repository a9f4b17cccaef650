"""An attention operation as a value."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from sinkscope.attention.masks import Causal, Mask
from sinkscope.attention.normalizers import MetricWeights, Normalizer, Softmax
from sinkscope.attention.outputs import Output
from sinkscope.attention.pieces import STRICT
from sinkscope.attention.similarity import DotProduct, Similarity
from sinkscope.attention.sizes import Sizes
from sinkscope.attention.slots import Slot
from sinkscope.errors import InputError, unknown

if TYPE_CHECKING:
    from sinkscope.attention.operation import Operation


@dataclass(frozen=True, kw_only=True, config=STRICT)
class AttentionSpec:
    """What turns q, k, v into an output: similarity → scores → normaliser (over slots and tokens) → output pieces.

    Pieces combine freely. A combination that has no meaning is refused here, saying why. Values compare and hash by
    content, and `to_dict` / `from_dict` round-trip through JSON.
    """

    similarity: Similarity = DotProduct()
    normalizer: Normalizer = Softmax()
    slots: tuple[Slot, ...] = ()
    output: tuple[Output, ...] = ()
    mask: Mask = Causal()

    def __post_init__(self) -> None:
        normalized = isinstance(self.normalizer, Softmax) or self.normalizer.normalized
        for slot in self.slots:
            if not slot.has_value and not normalized:
                raise InputError(
                    f"a '{slot.kind}' slot carries no value, so it changes nothing under '{self.normalizer.kind}' "
                    "without normalisation: use a normalised normaliser or a slot with a value"
                )

    @property
    def metric_weights(self) -> MetricWeights:
        """Which weights the sink metric reads: `raw`, or rows `renormalized` to one (catalogue 12.3)."""
        return self.normalizer.metric_weights

    def build(self, *, heads: int, kv_heads: int, head_dim: int, hidden_size: int) -> Operation:
        """The module that computes this operation and owns what it learns. Raises `InputError` for impossible sizes."""
        from sinkscope.attention.operation import Operation

        return Operation(self, Sizes(heads, kv_heads, head_dim, hidden_size))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-able data."""
        return _adapter().dump_python(self, mode="json")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AttentionSpec:
        """Back from plain data. Raises `InputError`, in one line with the field's name, for what does not fit."""
        try:
            return _adapter().validate_python(dict(data))
        except ValidationError as error:
            raise _in_one_line(error) from error


def resolve(attention: AttentionSpec | Mapping[str, Any] | str) -> AttentionSpec:
    """A spec from a spec, its dict, or its name in the catalogue."""
    if isinstance(attention, AttentionSpec):
        return attention
    if isinstance(attention, str):
        from sinkscope.attention.catalog import CATALOG

        if attention not in CATALOG:
            raise unknown("attention operation", attention, CATALOG)
        return CATALOG[attention]
    return AttentionSpec.from_dict(attention)


def _adapter() -> Any:  # a TypeAdapter[AttentionSpec]; runtime checkers of annotations do not know that type
    return TypeAdapter(AttentionSpec)


def _in_one_line(error: ValidationError) -> InputError:
    """The first problem of a validation, with the nearest field where one was misspelt."""
    problem = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in problem["loc"]) or "attention"
    if isinstance(cause := problem.get("ctx", {}).get("error"), InputError):
        return cause
    if problem["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        fields = AttentionSpec.__dataclass_fields__
        near = difflib.get_close_matches(str(problem["loc"][-1]), fields, n=1)
        hint = f"did you mean '{near[0]}'?" if near and len(problem["loc"]) == 1 else "no such field"
        return InputError(f"attention: unknown field '{place}': {hint}")
    return InputError(f"attention: {place}: {problem['msg']}")
