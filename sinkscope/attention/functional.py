"""Attention as a function of tensors, and which path it would take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from sinkscope.attention.catalog import resolve
from sinkscope.attention.context import Bias
from sinkscope.attention.kernels import known
from sinkscope.attention.masks import Causal, Combinable, Full, Mask, TokenAxis
from sinkscope.attention.operation import Attended, Operation, Path, Taken, chosen
from sinkscope.attention.paths import chunked, flash, fused, sdpa, streamed
from sinkscope.attention.spec import AttentionSpec
from sinkscope.attention.visibility import Visibility
from sinkscope.errors import InputError

LONG = 2048  # queries, if the length is unknown
NOT_YET_MET = "not yet compared with the reference on this GPU: the first call does that, and takes it if they agree"


@dataclass(frozen=True)
class Explanation:
    """Which path an operation takes, and why. `kernel`: what computes it. `memory`: in addition to queries, keys,
    values and output, forward and backward, for T tokens of one head.
    """

    path: Literal["fast", "reference"]
    kernel: Taken
    reason: str
    memory: Literal["O(T)", "O(T²)"] = "O(T)"

    def __str__(self) -> str:
        return f"{self.path} ({self.kernel}, {self.memory} memory): {self.reason}"


def explain(
    spec: AttentionSpec | Mapping[str, Any] | str,
    query: Tensor | torch.device | str | None = None,
    *,
    keys: int | None = None,
    biased: bool = False,
    mask: Mask | None = None,
) -> Explanation:
    """The path `attend(..., path="auto")` takes for queries like `query` on `keys` tokens.

    Nothing is computed: for a fused kernel, this reports the result of a comparison on this GPU, or that there was none
    yet.

    Args:
        spec: An operation: a value, its data, or a name of the catalog.
        query: A tensor (batch, heads, query, dim), or a device for a long sequence there; None: a long sequence on the
            CPU.
        keys: Number of tokens that are attended to; None: as many as queries.
        biased: Whether a bias such as ALiBi is added to the scores.
        mask: Replaces the spec's own. Padding, which makes a mask other than the plain triangle, is not known here.
    """
    spec = resolve(spec)
    queries = query.shape[2] if isinstance(query, Tensor) and query.ndim == 4 else LONG
    where, aside, mask = _where(query), "", spec.mask if mask is None else mask
    if isinstance(query, Tensor) and query.ndim == 4 and query.is_cuda:
        visibility = Visibility.of(mask, queries, keys or queries, device=query.device)
        if fused.unfit(spec, visibility, query, query, query, biased=biased) is None:
            outcome = known(fused.specialization(spec, visibility, query, query), query.device)
            if outcome is not None and outcome.problem is None:
                return Explanation("fast", "fused", f"a fused kernel{where}, {outcome}")
            aside = f"; the fused kernel is {outcome or NOT_YET_MET}"
    taken = chosen(spec, "auto", queries, biased=biased)
    if taken == "sdpa":
        return Explanation("fast", taken, f"{_softmax(query, mask, queries, keys or queries)}{where}{_slots(spec)}")
    reason = f"{sdpa.obstacle(spec, biased=biased)}{aside}"
    if taken == "streamed":
        return Explanation("fast", taken, f"{streamed.ROWS} queries at a time, derivative written out{where}: {reason}")
    if taken == "chunked":
        return Explanation("fast", taken, f"{chunked.ROWS} queries at a time, recomputed backward{where}: {reason}")
    return Explanation("reference", taken, f"{queries} queries fit one chunk{where}: {reason}", "O(T²)")


def _softmax(query: Tensor | torch.device | str | None, mask: Mask, queries: int, keys: int) -> str:
    """What computes a softmax under this mask."""
    if isinstance(mask, Full) or (isinstance(mask, Causal) and queries == keys):
        return "scaled_dot_product_attention"
    device = query.device if isinstance(query, Tensor) else torch.device(query or "cpu")
    if device.type == "cpu":
        return f"the flash kernel, {flash.ROWS} queries at a time on the keys within their reach"
    return f"scaled_dot_product_attention, {chunked.ROWS} queries at a time, recomputed backward"


def _slots(spec: AttentionSpec) -> str:
    return f", with {len(spec.slots)} slot(s) besides the keys" if spec.slots else ""


def _where(query: Tensor | torch.device | str | None) -> str:
    if query is None:
        return ""
    if isinstance(query, Tensor):
        return f" on {query.device.type} in {str(query.dtype).removeprefix('torch.')}"
    return f" on {torch.device(query).type}"


def attend(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key value_dim"],
    spec: AttentionSpec | Mapping[str, Any] | str,
    parameters: Mapping[str, Tensor] | None = None,
    hidden: Float[Tensor, "batch read width"] | None = None,
    mask: Mask | Visibility | Tensor | None = None,
    scaling: float | None = None,
    path: Path | str = "auto",
    carried: Float[Tensor, "batch kv_heads key channels"] | None = None,
    bias: Bias | None = None,
) -> Attended:
    """Run an attention operation on tensors, whole: norms of queries and keys, gates of values, attention, outputs.

    Nothing is rotated here. If an operation acts before rotation (`spec.acts_before`), pass unrotated queries and keys,
    or call its parts yourself: `before_rotation`, rotation, `before_cache`, `forward`. With fewer queries than keys the
    queries are the last ones.

    Args:
        query, key, value: q, k and v; a key-value head serves heads / kv_heads query heads.
        spec: An operation: a value, its data, or a name of the catalog.
        parameters: The operation's state dict, required if it has parameters.
        hidden: The attention block's input at the queries; at every key if the operation acts before the cache.
            Required if the operation reads it.
        mask: None is the spec's own mask (causal unless it says otherwise); a mask value, a bound `Visibility`, or a
            boolean tensor that broadcasts to (batch, 1, query, key), True where a query sees a key, replaces it.
        scaling: Factor of q·k; None: dim^−1/2, or (dim / 2)^−1/2 for a difference of two maps.
        path: "auto", "reference", "fast" or the name of one path.
        carried: What keys store besides k and v, from `Operation.before_cache` (log f of a forgetting gate); None
            computes it from `hidden`.
        bias: Numbers added to the scores, such as ALiBi.

    Raises `InputError` for missing or unknown parameters, shapes that do not fit, and a path that is not exact.
    """
    spec = resolve(spec)
    if {query.ndim, key.ndim, value.ndim} != {4}:
        shapes = f"q {tuple(query.shape)}, k {tuple(key.shape)}, v {tuple(value.shape)}"
        raise InputError(f"{shapes}: expected (batch, heads, tokens, width) each")
    heads, dim = query.shape[1], query.shape[3]
    width = heads * dim if hidden is None else hidden.shape[-1]
    # Built for its shapes only: `functional_call` puts the caller's parameters in, so that gradients reach them.
    with torch.random.fork_rng(devices=()):  # what it draws is replaced, and no draw of the caller's may depend on it
        operation = spec.build(heads=heads, kv_heads=key.shape[1], head_dim=dim, hidden_size=width)
    wanted, passed = set(operation.state_dict()), set(parameters or {})
    if wanted != passed:
        raise InputError(
            f"this operation has the parameters {sorted(wanted) or 'none'}, but got {sorted(passed) or 'none'}: "
            "pass the state_dict() of spec.build(...)"
        )
    for name, parameter in (parameters or {}).items():
        if parameter.shape != (shape := operation.get_parameter(name).shape):
            raise InputError(f"parameter '{name}' {tuple(parameter.shape)}: expected {tuple(shape)}")
    whole = _Whole(operation)
    inputs = (query, key, value, _bound(mask, spec, query, key), hidden, scaling, path, carried, bias)
    return torch.func.functional_call(whole, {f"operation.{name}": p for name, p in (parameters or {}).items()}, inputs)


class _Whole(nn.Module):
    """An operation with the steps of its host, except rotation and cache."""

    def __init__(self, operation: Operation) -> None:
        super().__init__()
        self.operation = operation

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        visibility: Visibility,
        hidden: Tensor | None,
        scaling: float | None,
        path: Path | str,
        carried: Tensor | None,
        bias: Bias | None,
    ) -> Attended:
        operation = self.operation
        query, key = operation.before_rotation(query, key)
        if "cache" in operation.spec.acts_before and carried is None:
            if hidden is not None and hidden.shape[1] != key.shape[2]:
                raise InputError(
                    f"this operation reads the block's input at every key: hidden has {hidden.shape[1]} tokens for "
                    f"{key.shape[2]} keys"
                )
            value, carried = operation.before_cache(value, hidden)
            # Before the cache it is read at every key; from here on at the queries, which are the last keys.
            hidden = None if hidden is None else hidden[:, key.shape[2] - query.shape[2] :]
        return operation(query, key, value, visibility, hidden, scaling, path, carried, bias)


def _bound(mask: object, spec: AttentionSpec, query: Tensor, key: Tensor) -> Visibility:
    if isinstance(mask, Visibility):
        return mask
    if isinstance(mask, Tensor):
        return DenseVisibility.out(mask, query, key)
    if mask is not None and not isinstance(mask, Combinable):
        raise InputError(f"mask: expected a mask value, a Visibility or a boolean tensor, got {type(mask).__name__}")
    chosen = spec.mask if mask is None else mask
    return Visibility.of(chosen, query.shape[2], key.shape[2], device=query.device)


@dataclass(frozen=True, eq=False)
class DenseVisibility(Visibility):
    """A mask as a boolean tensor. `within`: the mask that it narrows, if it is known."""

    allowed: Bool[Tensor, "batch 1 query key"]
    within: Visibility | None = None

    @property
    def rule(self) -> Visibility | None:
        return None if self.within is None else self.within.rule

    @classmethod
    def out(cls, allowed: Tensor, query: Tensor, key: Tensor) -> DenseVisibility:
        queries, keys = query.shape[2], key.shape[2]
        while allowed.ndim < 4:
            allowed = allowed[None]
        if allowed.dtype != torch.bool or allowed.shape[1] != 1 or allowed.shape[2:] != (queries, keys):
            raise InputError(
                f"mask {tuple(allowed.shape)} {allowed.dtype}: expected booleans that broadcast to "
                f"(batch, 1, {queries}, {keys}), True = may attend"
            )
        asking = TokenAxis.plain(queries, start=max(0, keys - queries), device=query.device)  # the last of the keys
        awake = allowed.any(-1)[:, 0]  # a query that may attend to nothing is padding: zero output, no slot
        known = TokenAxis.plain(keys, device=query.device)
        return cls(Full(), TokenAxis(asking.order.expand(len(awake), -1), None, awake), known, allowed)

    @property
    def is_full(self) -> bool:
        return False

    def dense(self, rows: slice | None = None) -> Bool[Tensor, "batch 1 query key"]:
        return self.allowed if rows is None else self.allowed[:, :, rows]

    def narrowed(self, mask: Mask) -> DenseVisibility:
        return replace(self, allowed=self.allowed & mask.visible(self.query, self.key)[:, None])

    def upto(self, keys: slice) -> DenseVisibility:
        return DenseVisibility(self.mask, self.query, self.key.part(keys), self.allowed[..., keys])
