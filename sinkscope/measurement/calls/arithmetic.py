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


def in_bits(scores: Tensor, shift: Tensor) -> Tensor:
    """(scores − lse) / log 2, in place of the scores: log2 of the weights. `shift`: −lse / log 2."""
    return torch.add(shift, scores, alpha=UNIT, out=scores)


def shares(scores: Tensor, shift: Tensor) -> Tensor:
    """exp(scores − lse), in place of the scores. `shift`: −lse / log 2.

    As a power of two, which CPUs compute in a third of the time of torch.exp; the relative error, some 1e-7 ·
    (|scores − lse| + |lse|), is one that no weight shows.
    """
    return in_bits(scores, shift).exp2_()


def lengths(vectors: Float[Tensor, "batch heads position dim"]) -> Float[Tensor, "batch heads position"]:
    """‖v‖₂ in fp32, taken in the order in which layers lay vectors out: token after token, or head after head.

    Against that order it takes six times as long.
    """
    if vectors.is_contiguous():
        return vectors.float().norm(dim=-1)
    return vectors.transpose(1, 2).float().norm(dim=-1).transpose(1, 2)


def product(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    room: Float[Tensor, "_"] | None = None,
) -> Float[Tensor, "batch heads query key"]:
    """q·k, in the memory `room` where that is given. Grouped queries meet the key head of their group.

    The log-sum-exp is no part of the product, although that would spare a pass: a score must be rounded as it was in
    the layer that gave the log-sum-exp, or large ones give weights of 1 + 1e-5.
    """
    groups, keys, dim = key.shape[0] * key.shape[1], key.shape[2], key.shape[3]
    left, right = query.reshape(groups, -1, dim), key.reshape(groups, keys, dim)
    shape = (*query.shape[:3], keys)
    if room is None and 2 * keys <= left.shape[1]:  # as k·q, few rows of many, which takes a third of the time
        return torch.bmm(right, left.mT).mT.reshape(shape)
    out = query.new_empty(shape) if room is None else room[: math.prod(shape)].view(shape)
    torch.bmm(left, right.mT, out=out.view(groups, -1, keys))
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
