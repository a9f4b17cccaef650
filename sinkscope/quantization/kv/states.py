"""The keys and values that a model caches: read in a pass, their scales, and how they are shaped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from sinkscope.errors import UnsupportedModelError
from sinkscope.grids import Fp8, Rotated, largest_scale
from sinkscope.hooks import Editor, OpenStream, batches, checked_inputs, evaluating, unwrapped, without_logits
from sinkscope.quantization.kv.cached import full_modules
from sinkscope.quantization.kv.scheme import CacheScheme
from sinkscope.quantization.protected import Protect, ProtectedInPass, resolved_for_passes

Read = Callable[[int, Float[Tensor, "batch heads token dim"], Float[Tensor, "batch heads token dim"], Tensor], None]
"""Given a layer's index, its keys and values as attention gets them, and which tokens count: (batch, token)."""


@dataclass(frozen=True, eq=False)
class _Reading(Editor):
    """Shows the arguments of attention functions and changes nothing."""

    opened: OpenStream
    protected: ProtectedInPass
    modules: Mapping[nn.Module, int]
    read: Read

    def edits(self, module: nn.Module) -> bool:
        return module in self.modules

    def given(self, module: nn.Module, implementation: str | None, arguments: dict[str, Any]) -> dict[str, Any]:
        self.opened.edited(module)
        key, value = arguments["key"], arguments["value"]
        if not key.shape[-1]:  # attention in a family's own code shows editors no keys
            family = self.opened.stream.family
            raise UnsupportedModelError(
                f"family '{family}' computes attention in code of its own, so its keys cannot be read"
            )
        valid = self.opened.tokens(0, key.shape[2], key.device).valid
        counted: Bool[Tensor, "batch token"] = ~self.protected.so_far.to(key.device)
        counted = counted if valid is None else counted & valid
        self.read(self.modules[module], key.detach(), value.detach(), counted.expand(len(key), -1))
        return arguments


def read_states(
    model: nn.Module,
    inputs: Any,
    read: Read,
    *,
    protect: Protect | None = None,
    scheme: CacheScheme | None = None,
    batch_size: int = 8,
) -> None:
    """Pass the keys and values of each layer of full attention to `read`, batch by batch; keys carry their positions.

    Args:
        model: Any transformers model whose layers keep keys and values.
        inputs: As `measure` takes them.
        read: Called once for each layer and batch.
        protect: Tokens that do not count; nor does padding.
        scheme: Whose layers are read, without the ends that it leaves alone; None for all.
        batch_size: Rows per forward pass.

    Raises `UnsupportedModelError` as `QuantizeCache` does, and for attention that a family computes in its own code.
    """
    model = unwrapped(model)
    checked, samples = checked_inputs(model, inputs, batch_size)
    protect = resolved_for_passes(protect, model, checked)
    with ExitStack() as stack, evaluating(model), torch.no_grad():
        opened = OpenStream(model, stack)
        modules = full_modules(model, opened, scheme)
        opened.edit_attention(_Reading(opened, ProtectedInPass(model, protect, stack), modules, read))
        for batch in batches(model, checked, samples, batch_size):
            model(**batch | without_logits(model, batch))


def calibrated_scales(
    model: nn.Module,
    inputs: Any,
    top: float,
    *,
    protect: Protect | None = None,
    rotated: bool = False,
) -> tuple[dict[int, float], dict[int, float]]:
    """For each layer, the scale with which the largest key of these texts becomes `top`; and the same for values.

    As min–max observers fit `k_scale` and `v_scale` of checkpoints (llm-compressor; not checked against its code).

    Args:
        model: As in `read_states`.
        inputs: Calibration texts, as `measure` takes them.
        top: The largest number of the format.
        protect: Tokens that do not count.
        rotated: Whether keys and values are rotated before they are stored.
    """
    turned = Rotated(Fp8())
    scales: tuple[dict[int, float], dict[int, float]] = ({}, {})

    def read(layer: int, keys: Tensor, values: Tensor, counted: Tensor) -> None:
        for scale, x in zip(scales, (keys, values), strict=True):
            turn = turned.matrix(x.shape[-1]) if rotated else None
            # (batch, token, heads, dim) → (n, heads, dim), with `counted` over the first two axes.
            rows = (x if turn is None else turn(x.float())).transpose(1, 2)[counted]
            if len(rows):
                scale[layer] = max(scale.get(layer, 0.0), largest_scale(rows, top))

    read_states(model, inputs, read, protect=protect)
    return scales
