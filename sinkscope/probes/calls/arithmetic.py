"""The arithmetic in which statistics are computed, whatever the model runs in."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor

_BACKENDS = {"cuda": torch.backends.cuda.matmul, "cpu": torch.backends.mkldnn.matmul}  # type: ignore[attr-defined]
_SHORTENED = {"tf32": 2**-10, "bf16": 2**-7}  # rounding of fp32 products where a user allowed faster ones
UNIT = 1 / math.log(2)


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """fp32 that is fp32, without autocast and shortened products; no gradients; results outlive inference mode."""
    allowed = {name: backend.fp32_precision for name, backend in _BACKENDS.items()}
    with torch.inference_mode(False), torch.no_grad(), torch.autocast(device.type, enabled=False):
        try:
            for backend in _BACKENDS.values():
                backend.fp32_precision = "ieee"
            yield
        finally:
            for name, backend in _BACKENDS.items():
                backend.fp32_precision = allowed[name]


def shares(scores: Tensor, lse: Tensor, out: Tensor | None = None) -> Tensor:
    """exp(scores − lse), in place of the scores, or in the memory of `out`.

    As 2^((scores − lse) / log 2), which CPUs compute in a third of the time of torch.exp; the relative error, at most
    |scores − lse| · 1e-7, is one that no weight shows.
    """
    return torch.add(lse * -UNIT, scores, alpha=UNIT, out=scores if out is None else out).exp2_()


def product(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    scaling: float,
    offsets: Float[Tensor, "batch heads query 1"] | None,
    out: Float[Tensor, "batch heads query key"],
) -> Float[Tensor, "batch heads query key"]:
    """offsets + scaling · q·k, written to `out`, which is contiguous; adding them afterwards would be one more pass.

    Grouped queries meet the key head of their group. No offsets: 0.
    """
    groups, keys, dim = key.shape[0] * key.shape[1], key.shape[2], key.shape[3]
    room = out.view(groups, -1, keys)
    torch.baddbmm(
        room if offsets is None else offsets.reshape(groups, -1, 1),
        query.reshape(groups, -1, dim),
        key.reshape(groups, keys, dim).mT,
        beta=0 if offsets is None else 1,
        alpha=scaling,
        out=room,
    )
    return out


def rounding(*tensors: Tensor) -> float:
    """Relative rounding of the coarsest of these tensors' products, in the model's own arithmetic."""
    return max(_rounding(tensor) for tensor in tensors)


def _rounding(tensor: Tensor) -> float:
    own = torch.finfo(tensor.dtype).eps
    backend = _BACKENDS.get(tensor.device.type)
    if tensor.dtype != torch.float32 or backend is None:
        return own
    return max(own, _SHORTENED.get(backend.fp32_precision, 0.0))
