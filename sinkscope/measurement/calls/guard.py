"""Checks on a few rows that the weights we compute are those that the layer used, so that no number is silently wrong.

An attention function may apply a sink logit, window, softcap, bias or index mask that its arguments do not show. Our
weights would then differ from the model's; here that becomes an error that names the family and the layer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinkscope.attention import Bias, Full
from sinkscope.attention.functional import DenseVisibility
from sinkscope.errors import UnsupportedModelError
from sinkscope.measurement.calls.call import AttentionCall

FLOOR = 1e-5  # of the tolerance, relative to Σ_k w_k |v_k|
KERNEL = 1e-3  # largest difference of a kernel's log-sum-exp from ours, relative to 1 + |lse|


def verified(call: AttentionCall, family: str, host: float, *, attached: bool = False) -> AttentionCall:
    """`call`, checked on two rows; without the kernel's log-sum-exp if that disagrees with ours.

    A layer of transformers must return output = Σ_k w_k v_k. A lab or attached layer whose weights are a softmax must
    write out the weights exp(score − lse); other operations are always read from themselves. An `attached` layer must
    return the output of its operation. `host`: relative rounding of the layer's own arithmetic. Rows of padding, rows
    that see nothing and rows that are not finite are skipped (the last are reported with the measurement). Raises
    `UnsupportedModelError` for a difference beyond rounding.
    """
    if call.is_softmax:
        rows = _rows(call)
        if call.operation is None:
            _check_output(rows, family, host)
        else:
            for index, row in enumerate(rows.rows):
                weights = call.operation_weights(slice(row, row + 1)).token[:, :, 0]
                excess = (weights - rows.weights[:, :, index]).abs() > 1e-4
                if bool(excess[rows.counted[:, :, index]].any()):
                    layer = f"family '{family}', layer '{call.layer.name}'"
                    raise UnsupportedModelError(f"{layer}: its operation's weights are not exp(score − lse)")
        call = rows.call
    if attached:
        _check_attached_output(call, family, host)
    return call


@dataclass(frozen=True, eq=False)
class _CheckedRows:
    """The checked rows of a call: scores, log-sum-exp including the sink, and which rows are informative."""

    call: AttentionCall
    rows: list[int]
    scores: Float[Tensor, "batch heads n key"]
    total: Float[Tensor, "batch heads n"]
    counted: Bool[Tensor, "batch heads n"]

    @property
    def weights(self) -> Float[Tensor, "batch heads n key"]:
        return (self.scores - self.total[..., None]).exp()


def _check_output(checked: _CheckedRows, family: str, host: float) -> None:
    """Raises `UnsupportedModelError` unless the layer's output is Σ_k w_k v_k within rounding."""
    call = checked.call
    assert call.output is not None
    # Relative errors of weights show in Σ w v in proportion to Σ w |v|, however much the values cancel.
    ours, bound = _aggregates(call.wide_value, checked.weights)
    if call.entries is not None:
        scores = [call.entry_scores(slice(0, len(call.query)), slice(row, row + 1)) for row in checked.rows]
        more = _aggregates(call.entries.value.float(), (torch.cat(scores, 2) - checked.total[..., None]).exp())
        ours, bound = ours + more[0], bound + more[1]
    theirs = call.output[:, :, checked.rows].float()
    excess = (ours - theirs).abs() - _tolerance(checked, host)[..., None] * bound
    if bool((excess > 0)[checked.counted & torch.isfinite(theirs).all(-1)].any()):
        raise UnsupportedModelError(
            f"family '{family}', layer '{call.layer.name}': its attention output does not follow from its queries, "
            "keys and mask, so weights computed from them would be wrong; try attn_implementation='eager' or 'sdpa'"
        )


def _check_attached_output(call: AttentionCall, family: str, host: float) -> None:
    """Raises `UnsupportedModelError` unless an attached layer returned the output of its operation.

    The tolerance is rounding by `host` in sums of |weight| · |value|.
    """
    operation, context, output = call.operation, call.context, call.output
    if operation is None or context is None or output is None:
        return
    for row in _checked_rows(call):
        rows, visibility = slice(row, row + 1), context.visibility
        visible = DenseVisibility(Full(), visibility.query.part(rows), visibility.key, visibility.dense(rows))
        hidden = None if context.hidden is None else context.hidden[:, rows]
        bias = None if context.bias is None else _BiasFrom(context.bias, row)
        query, value = call.query[:, :, rows], call.value
        own_value = value[:, :, call.own_keys][:, :, rows]
        attended = operation(
            query, call.key, value, visible, hidden, context.scaling, path="reference", bias=bias, own=own_value
        )
        weight = sum(w.abs().sum(-1).amax() for w in (attended.weights, attended.slot_weights) if w is not None)
        scale = (1 + weight) * (1 + value.abs().amax()) + attended.output.abs().amax()
        difference = (output[:, :, rows] - attended.output).float().abs()
        if bool((difference[torch.isfinite(difference)] > (10 * FLOOR + 32 * host) * scale).any()):
            raise UnsupportedModelError(
                f"family '{family}', layer '{call.layer.name}': its attention output is not that of its operation"
            )


@dataclass(frozen=True, eq=False)
class _BiasFrom:
    """A bias for the queries from `start` on."""

    bias: Bias
    start: int

    def rows(self, rows: slice) -> Float[Tensor, "#batch #heads query key"]:
        return self.bias.rows(slice(self.start + rows.start, self.start + rows.stop))


def _checked_rows(call: AttentionCall) -> list[int]:
    # The first rows of a causal layer prove little: they see few keys, the very first only itself.
    queries = call.query.shape[2]
    return sorted({queries // 2, queries - 1})


def _rows(call: AttentionCall) -> _CheckedRows:
    rows = _checked_rows(call)
    samples, columns = slice(0, len(call.query)), slice(0, call.mask.keys)
    scores = torch.cat([call.scores(samples, slice(row, row + 1), columns) for row in rows], 2)
    lse = torch.logsumexp(scores, -1)
    # Before entries and the sink are added, which make a row finite that sees no token.
    counted = torch.isfinite(lse)
    if call.real is not None:
        counted &= call.real[:, None, rows]
    if call.entries is not None:
        entries = torch.cat([call.entry_scores(samples, slice(row, row + 1)) for row in rows], 2)
        lse = torch.logaddexp(lse, torch.logsumexp(entries, -1))
    total = lse if call.sink is None else torch.logaddexp(lse, call.sink.expand(call.query.shape[:3])[:, :, rows])
    if call.kernel_lse is not None:
        kernel, ours = call.kernel_lse[:, :, rows], total if call.kernel_has_sink else lse
        if bool(((kernel - ours).abs() > KERNEL * (1 + ours.abs()))[counted].any()):
            call = replace(call, kernel_lse=None)
    return _CheckedRows(call, rows, scores, total, counted)


def _aggregates(value: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Σ_k w_k v_k and Σ_k w_k |v_k|, (batch, heads, rows, dim)."""
    batch, kv_heads = value.shape[:2]
    # Heads of a group are consecutive: (batch, kv_heads, group · rows, key) @ (batch, kv_heads, key, dim).
    grouped = weights.reshape(batch, kv_heads, -1, weights.shape[-1])
    shape = (*weights.shape[:3], value.shape[-1])
    return (grouped @ value).reshape(shape), (grouped @ value.abs()).reshape(shape)


def _tolerance(checked: _CheckedRows, host: float) -> Float[Tensor, "batch heads n"]:
    """The rounding error of a row of weights: of scores in the host's arithmetic, and of dot products in our fp32."""
    call, scores = checked.call, checked.scores
    # exp(s + e) ≈ exp(s) (1 + e): an absolute error of a score is a relative error of its weight.
    largest = scores.masked_fill(scores == -torch.inf, 0.0).abs().amax(-1)
    lengths = call.wide_query[:, :, checked.rows].norm(dim=-1) * call.key_lengths.amax()
    return FLOOR + host * (2 + largest) + 4 * torch.finfo(torch.float32).eps * lengths * abs(call.scaling)
