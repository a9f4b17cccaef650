"""The pieces of an attention operation, and the combinations that are meaningless."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from sinkscope.attention.difference import Difference
from sinkscope.attention.masks import Causal, Full, Mask, Strict, Window, canonical, conjuncts, leaves
from sinkscope.attention.normalizers import Linear, MetricWeights, Normalizer, Relu, Softmax, Softpick, StickBreaking
from sinkscope.attention.outputs import (
    ElementGate,
    Exclusive,
    HeadNorm,
    OfValues,
    Output,
    OutputPiece,
    OwnValueGate,
    ValueBias,
    ValueGate,
    ValueStateGate,
)
from sinkscope.attention.pieces import ByKind, is_registered, pieces
from sinkscope.attention.scores import DotProduct, Kernel, Similarity
from sinkscope.attention.scoring.decay import ForgettingGate
from sinkscope.attention.scoring.first_key import FirstKeyLogit
from sinkscope.attention.scoring.query_key import CosineScores, QueryKeyNorm
from sinkscope.attention.scoring.temperature import LogLength
from sinkscope.attention.slots import KeySlot, Slot, SuffixSlot
from sinkscope.errors import InputError


@pieces
class Combination:
    """The pieces of an `AttentionSpec`: all that `Operation` and its paths read. Meaningless combinations raise
    `InputError`.
    """

    similarity: Similarity = DotProduct()
    normalizer: Normalizer = Softmax()
    slots: tuple[Slot, ...] = ()
    output: tuple[Output, ...] = ()
    mask: Annotated[Mask, AfterValidator(canonical)] = Causal()
    query_key: Annotated[QueryKeyNorm | CosineScores, ByKind()] | None = None
    temperature: LogLength | None = None
    first_key: FirstKeyLogit | None = None
    decay: ForgettingGate | None = None
    value_gate: OfValues | None = None
    difference: Difference | None = None

    def __post_init__(self) -> None:
        for reason in meaningless(self):
            raise InputError(reason)

    @property
    def metric_weights(self) -> MetricWeights:
        """Which weights the sink metric reads: `raw`, or rows `renormalized` to one."""
        return "renormalized" if self.difference is not None else self.normalizer.metric_weights

    @property
    def is_plain_softmax(self) -> bool:
        """Whether weights are exp(scaling · q·k − log-sum-exp), over tokens and slots only."""
        beside = (self.temperature, self.first_key, self.decay, self.difference)
        plain = isinstance(self.normalizer, Softmax) and isinstance(self.similarity, DotProduct)
        return plain and all(piece is None for piece in beside)

    @property
    def is_shift_invariant(self) -> bool:
        """Whether only distances between rotary positions matter, so that shifting a row by padding changes nothing.

        False if something unrotated meets a rotated query or key: a feature map applied after rotation, or a slot's
        key. Then left padding changes outputs unless `position_ids` count real tokens.
        """
        keyed = any(slot.kind in ("key", "latent") for slot in self.slots)
        return isinstance(self.similarity, DotProduct) and not keyed

    @property
    def needs_hidden(self) -> bool:
        """Whether it reads the input of the attention block."""
        readers = any(piece.needs_hidden for piece in (*self.slots, *self.output))
        gated = self.value_gate is not None and self.value_gate.needs_hidden
        return readers or self.decay is not None or gated

    @property
    def as_wide_as_heads(self) -> str | None:
        """The first piece that works on values, which must then be as wide as queries; None if any width works."""
        slots = (slot for slot in self.slots if slot.has_value)
        outputs = (piece for piece in self.output if _wide(piece))
        gates = (gate for gate in (self.value_gate,) if gate is not None and _gates_channels(gate))
        differences = (each for each in (self.difference,) if each is not None)
        return next((piece.kind for piece in (*slots, *outputs, *gates, *differences)), None)

    @property
    def needs_every_key(self) -> str | None:
        """The first piece that changes its meaning if a cache drops or reorders keys; None if there is none."""
        pieces = (self.first_key, self.decay, *self.slots, *self.output, self.normalizer, self.similarity)
        present = (piece for piece in (*pieces, *leaves(self.mask)) if piece is not None)
        return next((piece.kind for piece in present if _reads_every_key(piece)), None)

    @property
    def acts_before(self) -> frozenset[Literal["rotation", "cache"]]:
        """Where a host must call it besides attending: on queries and keys before rotation, or on values before the
        cache (where tokens may also store more).
        """
        acts: list[tuple[Literal["rotation", "cache"], bool]] = [
            ("rotation", self.query_key is not None),
            ("cache", self.value_gate is not None or self.decay is not None),
        ]
        return frozenset(place for place, does in acts if does)


def meaningless(spec: Combination) -> Iterator[str]:
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
        starts_at_logit = isinstance(slot, KeySlot) and slot.initial_logit is not None
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
    mapped = not isinstance(spec.similarity, DotProduct)
    if mapped and spec.temperature is not None:
        yield "a temperature scales scores, but a feature map is not linear in its query"
    if mapped and any(slot.kind == "key" for slot in spec.slots):
        yield "a learned key is not a feature: key slots need the dot product"
    if is_registered(spec.similarity) and any(slot.kind not in ("zero", "logit", "suffix") for slot in spec.slots):
        yield f"a slot with a key needs the dot product: what '{spec.similarity.kind}' would make of it is not known"
    if is_registered(spec.similarity) and spec.difference is not None:
        yield f"differential attention cuts a head in two: what '{spec.similarity.kind}' maps is a whole one"
    if is_registered(spec.similarity) and spec.first_key is not None:
        yield f"a first key's logit is a further channel of the dot product, which '{spec.similarity.kind}' would map"
    if isinstance(spec.normalizer, Linear) and spec.first_key is not None:
        yield "a first key's logit adds to logits, and linear weights have none"
    if spec.first_key is not None and spec.difference is not None:
        yield "differential attention cuts a head in two, and a first key has one logit"
    if isinstance(spec.normalizer, Linear) and spec.decay is not None:
        yield "a forgetting gate adds to logits, and linear weights have none"
    if spec.difference is not None and (spec.slots or not isinstance(spec.normalizer, Softmax)):
        yield "differential attention is the difference of two plain softmax maps: no slots, no other normalizer"
    if [piece.kind for piece in spec.output].count("exclusive") > 1:
        yield "what is orthogonal to a token's value already is so the second time: one 'exclusive' is enough"
    if {Strict(), Window(1)} <= {*conjuncts(spec.mask)}:
        yield "a window of 1 shows a query itself alone, which 'strict' hides: no query would see anything"
    if spec.difference is not None and spec.query_key is not None:
        yield "differential attention cuts a head in two, and a norm over the whole head would mix its halves"


def _gates_channels(gate: OfValues) -> bool:
    return isinstance(gate, ValueStateGate) or (isinstance(gate, ValueGate) and not gate.per_head)


def _wide(piece: Output) -> bool:
    """Whether it has a parameter for each channel of a head."""
    if isinstance(piece, OutputPiece):
        return piece.as_wide_as_heads
    return isinstance(piece, ValueBias | ElementGate | OwnValueGate | HeadNorm)


def _reads_every_key(piece: Any) -> bool:
    if is_registered(piece):
        return bool(piece.needs_every_key)
    return isinstance(piece, FirstKeyLogit | ForgettingGate | SuffixSlot | Exclusive | OwnValueGate | StickBreaking)


def _positive(similarity: Similarity) -> bool:
    return isinstance(similarity, Kernel) and similarity.feature == "elu"
