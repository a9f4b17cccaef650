"""Does a layer's output follow from the weights that we measure? Checked on a few rows: no number is wrong silently.

A sink logit, window, softcap, bias or index mask that an attention function applies without telling would make our
weights differ from the model's; here that becomes an error that names the family and the layer.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.errors import UnsupportedModelError
from sinkscope.probes.calls import AttentionCall

FLOOR = 1e-5  # of the tolerance relative to Σ_k w_k |v_k|
TF32 = 2**-10


def verified(call: AttentionCall, output: Float[Tensor, "batch query heads dim"], family: str) -> AttentionCall:
    """`call`, without the kernel's log-sum-exp where that disagrees with ours. Costs two rows of attention.

    Raises `UnsupportedModelError` where output ≠ Σ_k w_k v_k beyond rounding. Rows that are padding, see nothing, or
    are not finite are skipped (the last are reported when the measurement is read).
    """
    queries = call.query.shape[2]
    rows = sorted({queries // 2, queries - 1})
    everything = slice(0, len(call.query)), slice(0, call.mask.keys)
    scores = torch.cat([call.scores(everything[0], slice(row, row + 1), everything[1]) for row in rows], 2)
    lse = torch.logsumexp(scores, -1)
    counted = torch.isfinite(lse)
    if call.real is not None:
        counted &= call.real[:, None, rows]
    if call.kernel_lse is not None and not _agree(call.kernel_lse[:, :, rows], lse, counted):
        call = replace(call, kernel_lse=None)
    total = lse if call.sink is None else torch.logaddexp(lse, call.sink.expand(call.query.shape[:3])[:, :, rows])
    ours, bound = _aggregates(call, (scores - total[..., None]).exp())
    theirs = output[:, rows].transpose(1, 2).float()
    excess = (ours - theirs).abs() - _tolerance(call, output, scores, rows)[..., None] * bound
    if bool((excess > 0)[counted & torch.isfinite(theirs).all(-1)].any()):
        raise UnsupportedModelError(
            f"family '{family}', layer '{call.layer.name}': its attention output does not follow from its queries, "
            "keys and mask, so weights computed from them would be wrong; try attn_implementation='eager' or 'sdpa'"
        )
    return call


def _aggregates(call: AttentionCall, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Σ_k w_k v_k and Σ_k w_k |v_k|, (batch, heads, rows, dim)."""
    value = call.value.float()
    batch, kv_heads = value.shape[:2]
    grouped = weights.reshape(batch, kv_heads, -1, weights.shape[-1])
    shape = (*weights.shape[:3], value.shape[-1])
    return (grouped @ value).reshape(shape), (grouped @ value.abs()).reshape(shape)


def _tolerance(call: AttentionCall, output: Tensor, scores: Tensor, rows: list[int]) -> Float[Tensor, "batch heads n"]:
    """What rounding may do to a row of weights: scores as the host rounds them, and dot products in our fp32."""
    host = max(_epsilon(call.query), _epsilon(output))
    largest = scores.masked_fill(scores == -torch.inf, 0.0).abs().amax(-1)
    lengths = call.wide_query[:, :, rows].norm(dim=-1) * call.wide_key.norm(dim=-1).amax()
    return FLOOR + host * (2 + largest) + 4 * torch.finfo(torch.float32).eps * lengths * abs(call.scaling)


def _epsilon(tensor: Tensor) -> float:
    if tensor.dtype == torch.float32 and tensor.is_cuda and torch.backends.cuda.matmul.allow_tf32:
        return TF32
    return torch.finfo(tensor.dtype).eps


def _agree(kernel: Tensor, ours: Tensor, counted: Tensor) -> bool:
    close = (kernel - ours).abs() <= 1e-3 * (1 + ours.abs())
    return bool((close | ~counted).all())
