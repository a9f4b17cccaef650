"""An attention operation as a value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from sinkscope.attention.decay import ForgettingGate
from sinkscope.attention.difference import Difference
from sinkscope.attention.masks import Causal, Full, Mask, leaves
from sinkscope.attention.normalizers import Linear, MetricWeights, Normalizer, Relu, Softmax, Softpick
from sinkscope.attention.outputs import Output, ValueGate
from sinkscope.attention.pieces import STRICT
from sinkscope.attention.query_key import QueryKeyNorm
from sinkscope.attention.similarity import DotProduct, Kernel, Similarity
from sinkscope.attention.sizes import Sizes
from sinkscope.attention.slots import Slot, SuffixSlot
from sinkscope.attention.temperature import LogLength
from sinkscope.errors import InputError, unknown
from sinkscope.invalid import in_one_line

if TYPE_CHECKING:
    from sinkscope.attention.operation import Operation


@dataclass(frozen=True, kw_only=True, config=STRICT)
class AttentionSpec:
    """What turns q, k, v into an output, in this order:

    query_key (before rotation) → value_gate (before the cache) → temperature → similarity → decay → slots → normalizer
    → difference → aggregation → output. Pieces combine freely. A combination that has no meaning is refused here,
    saying why. Values compare and hash by content, and `to_dict` / `from_dict` round-trip through JSON.
    """

    similarity: Similarity = DotProduct()
    normalizer: Normalizer = Softmax()
    slots: tuple[Slot, ...] = ()
    output: tuple[Output, ...] = ()
    mask: Mask = Causal()
    query_key: QueryKeyNorm | None = None
    temperature: LogLength | None = None
    decay: ForgettingGate | None = None
    value_gate: ValueGate | None = None
    difference: Difference | None = None

    def __post_init__(self) -> None:
        for reason in meaningless(self):
            raise InputError(reason)

    @property
    def metric_weights(self) -> MetricWeights:
        """Which weights the sink metric reads: `raw`, or rows `renormalized` to one (catalogue 12.3)."""
        return "renormalized" if self.difference is not None else self.normalizer.metric_weights

    @property
    def is_plain_softmax(self) -> bool:
        """Whether weights are exp(scaling · q·k − log-sum-exp), with nothing but slots beside the tokens."""
        beside = (self.temperature, self.decay, self.difference)
        plain = isinstance(self.normalizer, Softmax) and isinstance(self.similarity, DotProduct)
        return plain and all(piece is None for piece in beside)

    @property
    def needs_hidden(self) -> bool:
        """Whether it reads the input of the attention block."""
        readers = any(piece.needs_hidden for piece in (*self.slots, *self.output))
        return readers or self.decay is not None or self.value_gate is not None

    @property
    def acts_before(self) -> frozenset[Literal["rotation", "cache"]]:
        """What a host must let it do beside attending: change queries and keys before rotation, or values before the
        cache (where tokens may also keep something more)."""
        acts: list[tuple[Literal["rotation", "cache"], bool]] = [
            ("rotation", self.query_key is not None),
            ("cache", self.value_gate is not None or self.decay is not None),
        ]
        return frozenset(place for place, does in acts if does)

    def within(self, context: int) -> AttentionSpec:
        """The same operation in a model of this maximum context, where a piece depends on it and does not name one."""
        slots = tuple(
            replace(slot, context=context) if isinstance(slot, SuffixSlot) and slot.context is None else slot
            for slot in self.slots
        )
        return self if slots == self.slots else replace(self, slots=slots)

    def build(self, *, heads: int, kv_heads: int, head_dim: int, hidden_size: int, layer: int = 0) -> Operation:
        """The module that computes this operation and owns what it learns. Raises `InputError` for impossible sizes."""
        from sinkscope.attention.operation import Operation

        return Operation(self, Sizes(heads, kv_heads, head_dim, hidden_size, layer))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-able data."""
        return _adapter().dump_python(self, mode="json", exclude_none=True)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AttentionSpec:
        """Back from plain data. Raises `InputError`, in one line with the field's name, for what does not fit."""
        try:
            return _adapter().validate_python(dict(data))
        except ValidationError as error:
            raise in_one_line(error, AttentionSpec, "attention") from error


def meaningless(spec: AttentionSpec) -> Iterator[str]:
    """Why these pieces make no sense together."""
    for slot in spec.slots:
        if not slot.has_value and not spec.normalizer.couples_keys:
            yield (
                f"a '{slot.kind}' slot carries no value, so it changes nothing under '{spec.normalizer.kind}' "
                "without normalization: use weights that are normalized, or a slot with a value"
            )
        if slot.kind == "zero" and isinstance(spec.normalizer, Softpick | Relu | Linear):
            yield (
                f"a zero slot has score 0, which weighs nothing under '{spec.normalizer.kind}': use a slot with a key "
                "or a logit"
            )
        starts_at_logit = slot.kind == "key" and slot.initial_logit is not None
        if isinstance(spec.normalizer, Linear) and (slot.kind == "logit" or starts_at_logit):
            yield "a slot's logit competes with logits, and linear weights have none"
        if slot.kind == "suffix" and not isinstance(spec.normalizer, Softmax):
            yield f"StableMask's pseudo logits belong to a softmax, not to '{spec.normalizer.kind}'"
        if slot.kind == "suffix" and any(isinstance(mask, Full) for mask in leaves(spec.mask)):
            yield "StableMask stands for what a query cannot see yet, and under a bidirectional mask that is nothing"
    if isinstance(spec.normalizer, Linear) and spec.normalizer.divisor == "sum" and not _positive(spec.similarity):
        yield "rows of scores of either sign cannot be divided by their sum: use divisor 'abs_sum' or the elu kernel"
    if isinstance(spec.similarity, Kernel) and not isinstance(spec.normalizer, Linear):
        yield f"a feature map already makes weights: its normalizer is 'linear', not '{spec.normalizer.kind}'"
    if isinstance(spec.similarity, Kernel) and spec.temperature is not None:
        yield "a temperature scales scores, but a feature map is not linear in its query"
    if isinstance(spec.similarity, Kernel) and any(slot.kind == "key" for slot in spec.slots):
        yield "a learned key is not a feature: key slots need the dot product"
    if isinstance(spec.normalizer, Linear) and spec.decay is not None:
        yield "a forgetting gate adds to logits, and linear weights have none"
    if spec.difference is not None and (spec.slots or not isinstance(spec.normalizer, Softmax)):
        yield "differential attention is the difference of two plain softmax maps: no slots, no other normalizer"
    if spec.difference is not None and spec.query_key is not None:
        yield "differential attention cuts a head in two, and a norm over the whole head would mix its halves"


def _positive(similarity: Similarity) -> bool:
    return isinstance(similarity, Kernel) and similarity.feature == "elu"


def resolve(attention: AttentionSpec | Mapping[str, Any] | str | object) -> AttentionSpec:
    """A spec from a spec, its dict, its name in the catalog, or `{"name": ..., option: value, ...}`.

    Raises `InputError` for anything else, and for unknown names and options, with the nearest one.
    """
    if isinstance(attention, AttentionSpec):
        return attention
    if not isinstance(attention, str | Mapping):
        raise InputError(f"attention = {attention!r}: expected a name such as 'sigmoid', its options, or a spec's dict")
    named = {"name": attention} if isinstance(attention, str) else {str(key): attention[key] for key in attention}
    if "name" not in named:
        return AttentionSpec.from_dict(named)
    from sinkscope.attention.catalog import ENTRIES

    name = str(named.pop("name"))
    if name not in ENTRIES:
        raise unknown("attention operation", name, ENTRIES)
    return ENTRIES[name].make(**named)


def _adapter() -> Any:  # a TypeAdapter[AttentionSpec]; runtime checkers of annotations do not know that type
    return TypeAdapter(AttentionSpec)
