"""The arithmetic in which statistics are computed, whatever the model runs in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_BACKENDS = {"cuda": torch.backends.cuda.matmul, "cpu": torch.backends.mkldnn.matmul}  # type: ignore[attr-defined]
_SHORTENED = {"tf32": 2**-10, "bf16": 2**-7}  # rounding of fp32 products where a user allowed faster ones


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


def rounding(*tensors: Tensor) -> float:
    """Relative rounding of the coarsest of these tensors' products, in the model's own arithmetic."""
    return max(_rounding(tensor) for tensor in tensors)


def _rounding(tensor: Tensor) -> float:
    own = torch.finfo(tensor.dtype).eps
    backend = _BACKENDS.get(tensor.device.type)
    if tensor.dtype != torch.float32 or backend is None:
        return own
    return max(own, _SHORTENED.get(backend.fp32_precision, 0.0))
