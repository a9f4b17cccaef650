"""Attention as a function of tensors, and which path it would take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinkscope.attention import fast
from sinkscope.attention.masks import MASKS, Full, Mask
from sinkscope.attention.operation import Attended, Path
from sinkscope.attention.spec import AttentionSpec, resolve
from sinkscope.attention.tokens import Tokens
from sinkscope.attention.visibility import Visibility
from sinkscope.errors import InputError


@dataclass(frozen=True)
class Explanation:
    """Which path an operation takes, and why."""

    path: Literal["fast", "reference"]
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def explain(spec: AttentionSpec | str, query: Tensor | None = None) -> Explanation:
    """The path `attend(..., path="auto")` would take for queries like `query`."""
    spec = resolve(spec)
    if reason := fast.obstacle(spec):
        return Explanation("reference", reason)
    extra = f", {len(spec.slots)} slot(s) as further keys" if spec.slots else ""
    where = "" if query is None else f" on {query.device.type} in {str(query.dtype).removeprefix('torch.')}"
    return Explanation("fast", f"scaled_dot_product_attention{where}{extra}")


def attend(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key value_dim"],
    spec: AttentionSpec | str,
    parameters: Mapping[str, Tensor] | None = None,
    hidden: Float[Tensor, "batch query width"] | None = None,
    mask: Mask | Visibility | Tensor | None = None,
    scaling: float | None = None,
    path: Path = "auto",
) -> Attended:
    """Run an attention operation on tensors.

    `mask`: None is the spec's own mask (causal unless it says otherwise); a mask value, a bound `Visibility`, or a
    boolean tensor that broadcasts to (batch, 1, query, key) replaces it. With fewer queries than keys the queries are
    the last ones. `parameters`: the operation's state dict, required where it learns something.
    Raises `InputError` for missing or unknown parameters, shapes that do not fit, and a path that is not exact.
    """
    spec = resolve(spec)
    heads, dim = query.shape[1], query.shape[3]
    width = heads * dim if hidden is None else hidden.shape[-1]
    operation = spec.build(heads=heads, kv_heads=key.shape[1], head_dim=dim, hidden_size=width)
    wanted, given = set(operation.state_dict()), set(parameters or {})
    if wanted != given:
        raise InputError(
            f"this operation's parameters are {sorted(wanted) or 'none'}, given were {sorted(given) or 'none'}: "
            "pass the state_dict() of spec.build(...)"
        )
    inputs = (query, key, value, _bound(mask, spec, query, key), hidden, scaling, path)
    return torch.func.functional_call(operation, dict(parameters or {}), inputs)


def _bound(mask: object, spec: AttentionSpec, query: Tensor, key: Tensor) -> Visibility:
    if isinstance(mask, Visibility):
        return mask
    if isinstance(mask, Tensor):
        return Written.out(mask, query, key)
    if mask is not None and not isinstance(mask, MASKS):
        raise InputError(f"mask: expected a mask value, a Visibility or a boolean tensor, got {type(mask).__name__}")
    chosen = spec.mask if mask is None else mask
    return Visibility.of(chosen, query.shape[2], key.shape[2], device=query.device)


@dataclass(frozen=True, eq=False)
class Written(Visibility):
    """A mask that came as a boolean tensor instead of a rule."""

    allowed: Bool[Tensor, "batch 1 query key"]

    @classmethod
    def out(cls, allowed: Tensor, query: Tensor, key: Tensor) -> Written:
        queries, keys = query.shape[2], key.shape[2]
        while allowed.ndim < 4:
            allowed = allowed[None]
        if allowed.dtype != torch.bool or allowed.shape[1] != 1 or allowed.shape[2:] != (queries, keys):
            raise InputError(
                f"mask {tuple(allowed.shape)} {allowed.dtype}: expected booleans that broadcast to "
                f"(batch, 1, {queries}, {keys}), True = may attend"
            )
        tokens = [Tokens.plain(count, device=query.device) for count in (queries, keys)]
        awake = allowed.any(-1)[:, 0]
        return cls(Full(), Tokens(tokens[0].order.expand(len(awake), -1), None, awake), tokens[1], allowed)

    @property
    def is_full(self) -> bool:
        return False

    def dense(self, rows: slice | None = None) -> Bool[Tensor, "batch 1 query key"]:
        return self.allowed if rows is None else self.allowed[:, :, rows]
