"""What the fused kernels can compute, as a value, and which operations of the zoo are that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from sinkscope.attention.masks import And, Causal, Full, Mask, Window
from sinkscope.attention.normalizers import Elu, Normalizer, Relu, Sigmoid, Softpick
from sinkscope.errors import InputError, unknown

Activation = Literal["sigmoid", "sigmoid_minus_log_n", "elu", "relu", "relu_over_n", "softpick"]
ACTIVATIONS: tuple[str, ...] = get_args(Activation)
MASK_KINDS = ("causal", "full")
UNBOUNDED = 2**30  # as a window: wider than any context, and sums of it with a place fit 32 bits
EPSILON = 1e-8  # added to the denominator of a row, as in the reference


@dataclass(frozen=True)
class KernelPlan:
    """One member of the element-wise family: weights, rows normalized or not, mask.

    `activation`: what a score s becomes, n being the keys that the query sees: σ(s), σ(s − log n), elu(s) + 1, relu(s),
    relu(s) / n; or softpick's relu(e^s − 1) / Σ|e^s − 1|, whose rows always have their denominator. `window`: a query
    sees its last `window` keys. Raises `InputError` for what has no meaning.
    """

    activation: str
    normalized: bool = False
    mask: str = "causal"
    window: int | None = None

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise unknown("activation", self.activation, ACTIVATIONS)
        if self.mask not in MASK_KINDS:
            raise unknown("mask kind", self.mask, MASK_KINDS)
        if self.activation == "softpick" and self.normalized:
            raise InputError("softpick has a denominator of its own: leave normalized=False")
        if self.window is not None and self.mask == "full":
            raise InputError(f"window = {self.window} with mask='full': the fused kernels window causal attention only")
        if self.window is not None and self.window < 1:
            raise InputError(f"window = {self.window}: at least 1")

    @property
    def divides(self) -> bool:
        """Whether rows are divided by a denominator."""
        return self.normalized or self.activation == "softpick"

    @property
    def causal(self) -> bool:
        return self.mask == "causal"


def plan_of(normalizer: Normalizer, mask: Mask) -> KernelPlan | None:
    """The plan that computes exactly this normalizer under this mask; None where there is none."""
    weights, seen = _weights(normalizer), _mask(mask)
    return KernelPlan(*weights, *seen) if weights and seen else None


def _weights(normalizer: Normalizer) -> tuple[str, bool] | None:
    match normalizer:
        case Sigmoid(bias=0.0):
            return ("sigmoid_minus_log_n" if normalizer.minus_log_n else "sigmoid"), normalizer.normalized
        case Elu():
            return "elu", normalizer.normalized
        case Relu():
            return ("relu_over_n" if normalizer.over_n else "relu"), normalizer.normalized
        case Softpick(epsilon=eps) if eps == EPSILON:
            return "softpick", False
    return None


def _mask(mask: Mask) -> tuple[str, int | None] | None:
    match mask:
        case Causal():
            return "causal", None
        case Full():
            return "full", None
        case And(Causal(), Window(size)) | And(Window(size), Causal()):
            return "causal", min(size, UNBOUNDED)
    return None
