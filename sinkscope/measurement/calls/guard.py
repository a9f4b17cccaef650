"""Are the weights that we measure those that the layer used? Checked on a few rows: no number is wrong silently.

A sink logit, window, softcap, bias or index mask that an attention function applies without telling would make our
weights differ from the model's; here that becomes an error that names the family and the layer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinkscope.attention import Bias, Full
from sinkscope.attention.functional import Written
from sinkscope.errors import UnsupportedModelError
from sinkscope.measurement.calls.call import AttentionCall

FLOOR = 1e-5  # of the tolerance, relative to Σ_k w_k |v_k|
KERNEL = 1e-3  # by how much a kernel's log-sum-exp may differ, relative to 1 + |lse|


@dataclass(frozen=True, eq=False)
class _Rows:
    """The checked rows of a call: their scores, log-sum-exp with the sink, and which of them say something."""

    call: AttentionCall
    rows: list[int]
    scores: Float[Tensor, "batch heads n key"]
    total: Float[Tensor, "batch heads n"]
    counted: Bool[Tensor, "batch heads n"]

    @property
    def weights(self) -> Float[Tensor, "batch heads n key"]:
        return (self.scores - self.total[..., None]).exp()


def verified(
    call: AttentionCall, output: Float[Tensor, "batch query heads dim"], family: str, host: float
) -> AttentionCall:
    """`call`, without the kernel's log-sum-exp where that disagrees with ours. Costs two rows of attention.

    `host`: relative rounding of the layer's own arithmetic. Raises `UnsupportedModelError` where output ≠ Σ_k w_k v_k
    beyond rounding. Rows that are padding, see nothing, or are not finite are skipped (the last are reported when the
    measurement is read).
    """
    checked = _rows(call)
    ours, bound = _aggregates(call.wide_value, checked.weights)
    if call.entries is not None:
        scores = [call.entry_scores(slice(0, len(call.query)), slice(row, row + 1)) for row in checked.rows]
        more = _aggregates(call.entries.value.float(), (torch.cat(scores, 2) - checked.total[..., None]).exp())
        ours, bound = ours + more[0], bound + more[1]
    theirs = output[:, checked.rows].transpose(1, 2).float()
    excess = (ours - theirs).abs() - _tolerance(checked, host)[..., None] * bound
    if bool((excess > 0)[checked.counted & torch.isfinite(theirs).all(-1)].any()):
        raise UnsupportedModelError(
            f"family '{family}', layer '{call.layer.name}': its attention output does not follow from its queries, "
            "keys and mask, so weights computed from them would be wrong; try attn_implementation='eager' or 'sdpa'"
        )
    return checked.call


def verified_by_operation(call: AttentionCall, family: str) -> AttentionCall:
    """The same for a lab or attached layer: its operation writes the rows out and must agree with exp(score − lse).

    Raises `UnsupportedModelError` where it does not. Operations without a softmax are always read from themselves.
    """
    if not call.is_softmax:
        return call
    checked = _rows(call)
    for index, row in enumerate(checked.rows):
        found = call.operation_weights(slice(row, row + 1))
        excess = (found.token[:, :, 0] - checked.weights[:, :, index]).abs() > 1e-4
        if bool(excess[checked.counted[:, :, index]].any()):
            raise UnsupportedModelError(
                f"family '{family}', layer '{call.layer.name}': its operation's weights are not exp(score − lse)"
            )
    return checked.call


def verified_output(call: AttentionCall, family: str, host: float) -> None:
    """Is what an attached layer returned the output of its operation, for two rows of its queries?

    Raises `UnsupportedModelError` where it is not, beyond rounding by `host` in sums of |weight| · |value|.
    """
    operation, known, output = call.operation, call.context, call.output
    if operation is None or known is None or output is None:
        return
    for row in _checked_rows(call):
        part, seen = slice(row, row + 1), known.visibility
        visible = Written(Full(), seen.query.part(part), seen.key, seen.dense(part))
        hidden = None if known.hidden is None else known.hidden[:, part]
        bias = None if known.bias is None else _From(known.bias, row)
        query, value = call.query[:, :, part], call.value
        own = value[:, :, call.own_keys][:, :, part]
        found = operation(query, call.key, value, visible, hidden, known.scaling, path="reference", bias=bias, own=own)
        weight = sum(w.abs().sum(-1).amax() for w in (found.weights, found.slot_weights) if w is not None)
        scale = (1 + weight) * (1 + value.abs().amax()) + found.output.abs().amax()
        difference = (output[:, :, part] - found.output).float().abs()
        if bool((difference[torch.isfinite(difference)] > (10 * FLOOR + 32 * host) * scale).any()):
            raise UnsupportedModelError(
                f"family '{family}', layer '{call.layer.name}': its attention output is not that of its operation"
            )


@dataclass(frozen=True, eq=False)
class _From:
    """A bias for the queries from `start` on."""

    bias: Bias
    start: int

    def rows(self, rows: slice) -> Float[Tensor, "#batch #heads query key"]:
        return self.bias.rows(slice(self.start + rows.start, self.start + rows.stop))


def _checked_rows(call: AttentionCall) -> list[int]:
    queries = call.query.shape[2]
    return sorted({queries // 2, queries - 1})


def _rows(call: AttentionCall) -> _Rows:
    rows = _checked_rows(call)
    samples, columns = slice(0, len(call.query)), slice(0, call.mask.keys)
    scores = torch.cat([call.scores(samples, slice(row, row + 1), columns) for row in rows], 2)
    lse = torch.logsumexp(scores, -1)
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
    return _Rows(call, rows, scores, total, counted)


def _aggregates(value: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Σ_k w_k v_k and Σ_k w_k |v_k|, (batch, heads, rows, dim)."""
    batch, kv_heads = value.shape[:2]
    grouped = weights.reshape(batch, kv_heads, -1, weights.shape[-1])
    shape = (*weights.shape[:3], value.shape[-1])
    return (grouped @ value).reshape(shape), (grouped @ value.abs()).reshape(shape)


def _tolerance(checked: _Rows, host: float) -> Float[Tensor, "batch heads n"]:
    """What rounding may do to a row of weights: scores as the host rounds them, and dot products in our fp32."""
    call, scores = checked.call, checked.scores
    largest = scores.masked_fill(scores == -torch.inf, 0.0).abs().amax(-1)
    lengths = call.wide_query[:, :, checked.rows].norm(dim=-1) * call.key_lengths.amax()
    return FLOOR + host * (2 + largest) + 4 * torch.finfo(torch.float32).eps * lengths * abs(call.scaling)
