"""Gates on head outputs and values, computed from the block's input."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from pydantic import Field, Strict
from torch import Tensor, nn
from torch.nn import functional as F

from sinkscope.attention.pieces import Learned, Sizes, piece
from sinkscope.errors import InputError

Openness = Annotated[float, Field(gt=0, lt=1)]
Spread = Annotated[float, Field(ge=0)]
Channels = Annotated[int, Strict(), Field(ge=1)]


def logit(share: float) -> float:
    """The number whose sigmoid is `share`."""
    return math.log(share / (1 - share))


@piece
class HeadGate:
    """y_h = g_h(x) · (A V)_h with one gate per head and token, g = σ(…). Source: Bondarenko et al. 2023.

    x is the input of the attention block. `reads`: "slice", head h reads the h-th of H slices of x by weights of its
    own (theirs); "all", every head reads the whole x; "nothing", a learned scalar; a number n, every head reads the
    first n channels of x (Dial 2025: n = 12, openness 0.5, weights from zero, no b). `mlp_width`: a hidden layer of
    that width (relu) in between, as in their BERT. `openness`: g at x = 0; `initial_std`: of the (last) weights.
    `relative`: g is divided by the openness, so that with `initial_std` 0 nothing changes at the start (their
    fine-tuning mode, with standard deviation 0.001).
    """

    reads: Literal["slice", "all", "nothing"] | Channels = "slice"
    mlp_width: Annotated[int, Field(ge=1)] | None = None
    openness: Openness = 0.25
    initial_std: Spread = 0.02
    relative: bool = False
    kind: Literal["head_gate"] = "head_gate"

    def __post_init__(self) -> None:
        if self.reads == "nothing" and self.mlp_width is not None:
            raise InputError("a gate that reads nothing cannot use mlp_width")

    @property
    def needs_hidden(self) -> bool:
        return self.reads != "nothing"

    def build(self, sizes: Sizes) -> nn.Module:
        if self.reads == "slice" and sizes.hidden_size % sizes.heads:
            raise InputError(
                f"a gate that reads a slice per head needs hidden_size = {sizes.hidden_size} to be a multiple of heads "
                f"= {sizes.heads}; reads='all' does not"
            )
        if isinstance(self.reads, int) and self.reads > sizes.hidden_size:
            raise InputError(f"a gate that reads {self.reads} channels: the block's input has {sizes.hidden_size}")
        return _HeadGate(self, sizes)


@piece
class ElementGate:
    """y = σ(W x + b) ⊙ A V, a gate for every channel of every head, x the input of the attention block.

    Source: Qiu et al. 2025 (2505.06708), after aggregation; they have no b. `openness` (b = logit), `initial_std`,
    `relative` as in `HeadGate`.
    """

    openness: Openness = 0.5
    initial_std: Spread = 0.02
    relative: bool = False
    kind: Literal["element_gate"] = "element_gate"
    needs_hidden = True

    def build(self, sizes: Sizes) -> nn.Module:
        return GateMap(sizes.hidden_size, (sizes.heads, sizes.head_dim), self)


@piece
class ValueGate:
    """v ← σ(W x + b) ⊙ v before aggregation and before the cache, x the block's input at the value's own token.

    One gate per key-value head, for every channel or, with `per_head`, one for all. Source: Qiu et al. 2025
    (2505.06708), their value position; they have no b. Options as in `HeadGate`.
    """

    per_head: bool = False
    openness: Openness = 0.5
    initial_std: Spread = 0.02
    relative: bool = False
    kind: Literal["value_gate"] = "value_gate"
    needs_hidden = True

    def build(self, sizes: Sizes) -> GateMap:
        return GateMap(sizes.hidden_size, (sizes.kv_heads, 1 if self.per_head else sizes.head_dim), self)


@piece
class ValueStateGate:
    """v_j ← σ(w_h·v_j + b_h) v_j before aggregation and before the cache: one gate per key-value head, from the value.

    Source: 2510.09017, equation 6, by third-party notes (`gated_by_value` has both of its forms). They have no b.
    Options as in `HeadGate`.
    """

    openness: Openness = 0.5
    initial_std: Spread = 0.02
    relative: bool = False
    kind: Literal["value_state_gate"] = "value_state_gate"
    needs_hidden = False

    def build(self, sizes: Sizes) -> OwnGate:
        return OwnGate(sizes.kv_heads, sizes.head_dim, self)


@piece
class OwnValueGate:
    """y_t ← σ(w_h·v_t + b_h) y_t, v_t the query's own value: one gate per query head on its output.

    With grouped heads v_t is that of the query's group. Source: 2510.09017, appendix B, by third-party notes. They have
    no b. Options as in `HeadGate`.
    """

    openness: Openness = 0.5
    initial_std: Spread = 0.02
    relative: bool = False
    kind: Literal["own_value_gate"] = "own_value_gate"
    needs_hidden = False

    def build(self, sizes: Sizes) -> OwnGate:
        return OwnGate(sizes.heads, sizes.head_dim, self)


class OwnGate(Learned):
    """σ(w_h·v + b_h) times what it gates, which is v itself (before the cache) or the output that goes with it."""

    def __init__(self, heads: int, width: int, start: ValueStateGate | OwnValueGate) -> None:
        super().__init__()
        self.start = start
        self.weight = nn.Parameter(torch.empty(heads, width))
        self.bias = nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    @property
    def reads_own(self) -> bool:
        """Whether it is given the values of the queries' own tokens."""
        return isinstance(self.start, OwnValueGate)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.start.initial_std)
        nn.init.constant_(self.bias, logit(self.start.openness))

    def forward(
        self, gated: Float[Tensor, "batch heads token dim"], own_value: Tensor | None
    ) -> Float[Tensor, "batch heads token dim"]:
        value = own_value if self.reads_own and own_value is not None else gated
        # Query head h belongs to key-value head h // group.
        value = value.repeat_interleave(gated.shape[1] // value.shape[1], 1)
        score = (value * self.weight[:, None].to(value.dtype)).sum(-1) + self.bias[:, None].to(value.dtype)
        opened = torch.sigmoid(score)[..., None]
        return gated * (opened / self.start.openness if self.start.relative else opened).to(gated.dtype)


@piece
class ValueGradient:
    """v̂ = sg(v) + φ v − sg(φ v): values stay what they are, and their gradients are those of φ v.

    `phi`: "constant", φ = strength; "inverse_rms", φ = strength / sqrt(‖v‖² / d + 1e-6), detached. The backward-only
    control of V-scale (2603.17771, by the authors' answers to reviewers), whose own φ_θ(‖v‖²) could not be found.
    """

    phi: Literal["constant", "inverse_rms"] = "constant"
    strength: Annotated[float, Field(gt=0)] = 0.5
    kind: Literal["value_gradient"] = "value_gradient"
    needs_hidden = False

    def build(self, sizes: Sizes) -> nn.Module:
        return _ValueGradient(self)


class _ValueGradient(nn.Module):
    def __init__(self, spec: ValueGradient) -> None:
        super().__init__()
        self.spec = spec

    def forward(
        self, value: Float[Tensor, "batch heads token dim"], hidden: Tensor | None
    ) -> Float[Tensor, "batch heads token dim"]:
        factor: Tensor | float = self.spec.strength
        if self.spec.phi == "inverse_rms":
            factor = factor * (value.detach().float().square().mean(-1, keepdim=True) + 1e-6).rsqrt().to(value.dtype)
        scaled = factor * value
        return value.detach() + (scaled - scaled.detach())  # the bracket is exactly zero


def required_hidden(hidden: Tensor | None) -> Tensor:
    """The block's input, where there is one."""
    if hidden is None:
        raise InputError("a gate reads the input of the attention block: pass `hidden` (batch, token, width)")
    return hidden


class GateMap(Learned):
    """σ(W x + b), shaped (batch, heads, token, channels)."""

    def __init__(self, width: int, shape: tuple[int, int], start: ElementGate | ValueGate) -> None:
        super().__init__()
        self.shape, self.start = shape, start
        self.maps = ("weight",) if shape[1] > 1 else ()  # one gate per head is a vector for each, not a map
        self.weight = nn.Parameter(torch.empty(shape[0] * shape[1], width))
        self.bias = nn.Parameter(torch.empty(shape[0] * shape[1]))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.start.initial_std)
        nn.init.constant_(self.bias, logit(self.start.openness))

    def gate(self, hidden: Float[Tensor, "batch token width"] | None) -> Float[Tensor, "batch heads token channels"]:
        """The gate of every token."""
        x = required_hidden(hidden)
        opened = torch.sigmoid(F.linear(x, self.weight.to(x.dtype), self.bias.to(x.dtype)))
        opened = opened / self.start.openness if self.start.relative else opened
        return opened.unflatten(-1, self.shape).transpose(1, 2)

    def forward(
        self, values: Float[Tensor, "batch heads token dim"], hidden: Float[Tensor, "batch token width"] | None
    ) -> Float[Tensor, "batch heads token dim"]:
        return values * self.gate(hidden).to(values.dtype)


class _HeadGate(Learned):
    def __init__(self, spec: HeadGate, sizes: Sizes) -> None:
        super().__init__()
        self.spec, heads = spec, sizes.heads
        width = sizes.hidden_size // heads if spec.reads == "slice" else sizes.hidden_size
        width = spec.reads if isinstance(spec.reads, int) else width
        reads, inner = spec.reads != "nothing", spec.mlp_width
        self.inner = nn.Parameter(torch.empty(heads, inner, width)) if inner else None
        self.weight = nn.Parameter(torch.empty(heads, inner or width)) if reads else None
        self.bias = nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.inner is not None:  # never zero: the hidden layer would stay dead
            nn.init.normal_(self.inner, std=self.inner.shape[-1] ** -0.5)
        if self.weight is not None:
            nn.init.normal_(self.weight, std=self.spec.initial_std)
        nn.init.constant_(self.bias, logit(self.spec.openness))

    def forward(
        self, output: Float[Tensor, "batch heads query dim"], hidden: Float[Tensor, "batch query width"] | None
    ) -> Float[Tensor, "batch heads query dim"]:
        opened = torch.sigmoid(self._score(hidden) + self.bias[:, None].to(output.dtype))
        opened = opened / self.spec.openness if self.spec.relative else opened
        return output * opened[..., None].to(output.dtype)

    def _score(self, hidden: Tensor | None) -> Tensor:
        if self.weight is None:
            return self.bias.new_zeros(1, 1, 1)
        x = required_hidden(hidden)
        x = x[..., : self.spec.reads] if isinstance(self.spec.reads, int) else x
        # (batch, query, heads, width / heads), or (batch, query, 1, width) where all heads read the same
        read = x.unflatten(-1, (len(self.weight), -1)) if self.spec.reads == "slice" else x.unsqueeze(2)
        read = read.transpose(1, 2)  # (batch, heads or 1, query, width)
        if self.inner is not None:
            read = (read @ self.inner.to(x.dtype).transpose(1, 2)).relu()
        return (read * self.weight[:, None].to(x.dtype)).sum(-1)  # (batch, heads, query)
