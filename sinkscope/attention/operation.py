"""The module that computes an attention operation and owns what it learns.

One object serves the lab model, the observers, attached models and caches: no formula exists a second time. The
reference here is naive on purpose; `fast.py` must agree with it, or is not offered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sinkscope.attention import fast
from sinkscope.attention.sizes import Sizes
from sinkscope.attention.slots import SlotTerms
from sinkscope.attention.spec import AttentionSpec
from sinkscope.attention.visibility import Visibility
from sinkscope.errors import InputError

Path = Literal["auto", "reference", "fast"]


@dataclass(frozen=True, eq=False)
class Attended:
    """What attention returns. The fast path returns the output alone; the reference returns everything.

    `lse` (log-sum-exp over tokens and slots, nats) exists only where the normaliser is a softmax.
    """

    output: Float[Tensor, "batch heads query value_dim"]
    weights: Float[Tensor, "batch heads query key"] | None = None
    slot_weights: Float[Tensor, "batch heads query slots"] | None = None
    lse: Float[Tensor, "batch heads query"] | None = None


@dataclass(frozen=True, eq=False)
class Weights:
    """Attention weights on tokens and on slots, fp32 or wider."""

    token: Float[Tensor, "batch heads query key"]
    slot: Float[Tensor, "batch heads query slots"]
    lse: Float[Tensor, "batch heads query"] | None = None


class Operation(nn.Module):
    """An `AttentionSpec` built for given sizes. Make one with `spec.build(...)`."""

    def __init__(self, spec: AttentionSpec, sizes: Sizes) -> None:
        super().__init__()
        self.spec = spec
        self.sizes = sizes
        self.slot_modules = nn.ModuleList(slot.build(sizes) for slot in spec.slots)
        self.output_modules = nn.ModuleList(piece.build(sizes) for piece in spec.output)

    @property
    def slots(self) -> int:
        """Number of slots."""
        return len(self.slot_modules)

    @property
    def has_fast_path(self) -> bool:
        return fast.obstacle(self.spec) is None

    def slot_terms(self) -> list[SlotTerms]:
        """Key, logit and value of each slot, as they are now."""
        return [slot() for slot in self.slot_modules]

    def forward(
        self,
        query: Float[Tensor, "batch heads query dim"],
        key: Float[Tensor, "batch kv_heads key dim"],
        value: Float[Tensor, "batch kv_heads key value_dim"],
        visibility: Visibility | None = None,
        hidden: Float[Tensor, "batch query width"] | None = None,
        scaling: float | None = None,
        path: Path = "auto",
    ) -> Attended:
        """Attend. `visibility` defaults to the spec's own mask; `scaling` to head_dim^-1/2.

        Raises `InputError` for shapes that do not fit and where `path="fast"` would not be exact.
        """
        self._check(query, key, value)
        visibility = visibility or self.bind(query.shape[2], key.shape[2], query.device)
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        if not scaling > 0:
            raise InputError(f"scaling = {scaling}: must be positive")
        if path == "fast" and (reason := fast.obstacle(self.spec)):
            raise InputError(f"no exact fast path: {reason}")
        if path != "reference" and self.has_fast_path:
            attended = Attended(fast.attention(query, key, value, self.slot_terms(), visibility, scaling))
        else:
            attended = self._reference(query, key, value, visibility, hidden, scaling)
        output = attended.output
        for module in self.output_modules:
            output = module(output, hidden)
        return Attended(output, attended.weights, attended.slot_weights, attended.lse)

    def weights(
        self,
        query: Float[Tensor, "batch heads query dim"],
        key: Float[Tensor, "batch kv_heads key dim"],
        visibility: Visibility | None = None,
        rows: slice | None = None,
        hidden: Float[Tensor, "batch query width"] | None = None,
        scaling: float | None = None,
    ) -> Weights:
        """The weights of the queries in `rows` (all by default), computed in fp32 at least, without autocast."""
        visibility = visibility or self.bind(query.shape[2], key.shape[2], query.device)
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        with torch.autocast(query.device.type, enabled=False):
            return self._weights(query, key, visibility, rows or slice(None), scaling)

    def slot_logits(
        self, query: Float[Tensor, "batch heads query dim"], scaling: float
    ) -> Float[Tensor, "batch heads query slots"]:
        """Scores of all queries on every slot: scaling · q·k* + b. Raises `InputError` where there is no slot."""
        if not self.slots:
            raise InputError("this operation has no slots")
        terms = self.slot_terms()
        return torch.stack([self._slot_logits(slot, query, slice(None), scaling) for slot in terms], -1)

    def bind(self, queries: int, keys: int, device: torch.device) -> Visibility:
        """The spec's own mask for the last `queries` of `keys` tokens."""
        return Visibility.of(self.spec.mask, queries, keys, device=device)

    def _weights(self, query: Tensor, key: Tensor, visibility: Visibility, rows: slice, scaling: float) -> Weights:
        query, key = _wide(query[:, :, rows]), _wide(key)
        visible = visibility.dense(rows)
        scores = self.spec.similarity.scores(query, key, scaling)
        slots = [self._slot_logits(terms, query, rows, scaling) for terms in self.slot_terms()]
        if slots:
            scores = torch.cat([torch.stack(slots, -1), scores], -1)
            awake = visible.any(-1, keepdim=True)  # a query that sees no token sees no slot: its row stays empty
            visible = torch.cat([awake.expand(*visible.shape[:3], len(slots)), visible], -1)
        weights = self.spec.normalizer.weights(scores, visible)
        lse = self.spec.normalizer.log_partition(scores, visible) if self.spec.normalizer.kind == "softmax" else None
        return Weights(weights[..., len(slots) :], weights[..., : len(slots)], lse)

    def _slot_logits(self, terms: SlotTerms, query: Tensor, rows: slice, scaling: float) -> Tensor:
        """scaling · q·k* + b for one slot, (batch, heads, query)."""
        logits = query.new_zeros(query.shape[:3])
        if terms.key is not None:
            logits = logits + scaling * (query * _per_query_head(terms.key, query).unsqueeze(1)).sum(-1)
        if terms.logit is not None:
            logit = terms.logit.to(query.dtype)
            logits = logits + (logit[:, None] if logit.ndim == 1 else logit[..., rows])
        return logits

    def _reference(
        self, query: Tensor, key: Tensor, value: Tensor, visibility: Visibility, hidden: Tensor | None, scaling: float
    ) -> Attended:
        """Naive attention in fp32 (float64 stays float64): every weight is written out."""
        with torch.autocast(query.device.type, enabled=False):
            found = self._weights(query, key, visibility, slice(None), scaling)
            output = _aggregate(found.token, _wide(value))
            for index, terms in enumerate(self.slot_terms()):
                if terms.value is not None:
                    output = output + found.slot[..., index, None] * _per_query_head(terms.value, output).unsqueeze(1)
        return Attended(output.to(query.dtype), found.token, found.slot, found.lse)

    def _check(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        sizes = self.sizes
        wanted = (sizes.heads, sizes.head_dim, sizes.kv_heads, sizes.head_dim, sizes.kv_heads)
        given = (query.shape[1], query.shape[-1], key.shape[1], key.shape[-1], value.shape[1])
        if wanted != given or key.shape[2] != value.shape[2]:
            raise InputError(
                f"q {tuple(query.shape)}, k {tuple(key.shape)}, v {tuple(value.shape)} do not fit an operation with "
                f"{sizes.heads} heads, {sizes.kv_heads} key-value heads, head width {sizes.head_dim}"
            )


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _per_query_head(parameter: Float[Tensor, "kv_heads dim"], like: Tensor) -> Float[Tensor, "heads dim"]:
    """One row per query head from one per key-value head, in the dtype of `like` (batch, heads, …)."""
    return parameter.to(like.dtype).repeat_interleave(like.shape[1] // parameter.shape[0], 0)


def _aggregate(weights: Tensor, value: Tensor) -> Tensor:
    """Σ_k w_tk v_k with grouped heads, (batch, heads, query, value_dim)."""
    batch, heads, queries, keys = weights.shape
    kv_heads = value.shape[1]
    grouped = weights.reshape(batch, kv_heads, heads // kv_heads * queries, keys)
    return (grouped @ value).view(batch, heads, queries, value.shape[-1])
