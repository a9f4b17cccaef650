"""IntactKV: a prefix whose keys and values are trained until the quantized model matches the full one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import Cache

from sinkscope.errors import InputError
from sinkscope.hooks import Stream, checked_inputs, device_of, evaluating, frozen, part, unwrapped
from sinkscope.interventions import Intervention
from sinkscope.quantization.prefix.files import keys_and_values
from sinkscope.quantization.prefix.prefix import Prefix

STEPS, RATE, BATCH = 160, 2e-4, 8
Progress = Callable[[int, int], object]


def calibrate_prefix(
    prefix: Prefix,
    model: nn.Module,
    inputs: Any,
    quantized: Intervention,
    *,
    steps: int = STEPS,
    lr: float = RATE,
    batch_size: int = BATCH,
    progress: Progress | None = None,
) -> Prefix:
    """The prefix with keys and values that minimize Σ_l ‖h_l − h̃_l‖² / (2 n) over texts.

    h_l is the output of block l in full precision after `prefix`, h̃_l its output under `quantized` after the trained
    prefix, and n the number of entries of h_l. AdamW without decay on keys and values alone; gradients pass through
    rounding unchanged. The full-precision outputs are held for all texts: texts × tokens × width × layers numbers.
    `Prefix.found["calibrated"]` has the loss of the first and of the last round over the texts. Padding does not count.

    Args:
        prefix: Where training starts.
        model: The model it was made with.
        inputs: Texts, as `measure` takes them.
        quantized: The intervention that quantizes.
        steps: Batches, in turn.
        lr: The learning rate.
        batch_size: Texts per step.
        progress: Called after each step with its number and their total.

    Raises `InputError` for invalid steps and rates, and for a loss that is not finite; `UnsupportedModelError` for
    caches that hold more than keys and values. Source: Liu et al. 2024b (IntactKV), 160 steps at 2e-4; on small models
    it has almost no effect.
    """
    model = unwrapped(model)
    prefix.check(model)
    if steps < 1 or not (isfinite(lr) and lr > 0):
        raise InputError(f"steps = {steps}, lr = {lr!r}: expected at least 1 step, and a rate above 0")
    checked, samples = checked_inputs(model, inputs, batch_size)
    if isinstance(mask := checked.get("attention_mask"), Tensor) and not bool(mask[:, 0].all()):
        raise InputError("texts are padded on the left: pad them on the right")
    parts = [
        part(checked, slice(start, min(start + batch_size, samples)), samples, device_of(model))
        for start in range(0, samples, batch_size)
    ]
    trained = _Trained.of(prefix)
    with evaluating(model), frozen(model):
        with torch.no_grad(), prefix.applied(model):
            wanted = [[hidden.detach() for hidden in _left(model, batch)] for batch in parts]
        losses = []
        optimizer = torch.optim.AdamW(trained.parameters, lr=lr, weight_decay=0.0)
        with quantized.applied(model), trained.applied(model), torch.enable_grad():
            for step in range(steps):
                batch, targets = parts[step % len(parts)], wanted[step % len(parts)]
                loss = loss_of(_left(model, batch), targets, batch.get("attention_mask"))
                losses.append(loss.item())
                if not isfinite(losses[-1]):
                    raise InputError(f"the loss of step {step} is {losses[-1]}: lower lr, or check the quantized model")
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if progress is not None:
                    progress(step + 1, steps)
    about = {"steps": steps, "lr": lr, "texts": samples, "under": quantized.describe()}
    about |= {"loss_first": sum(losses[: len(parts)]) / len(losses[: len(parts)])}
    about |= {"loss_last": sum(losses[-len(parts) :]) / len(losses[-len(parts) :])}
    return replace(prefix, held=trained.filled(prefix.cache()), found={**prefix.found, "calibrated": about})


def loss_of(left: list[Tensor], wanted: list[Tensor], mask: Tensor | None) -> Tensor:
    """Σ_l mean (h_l − h̃_l)² / 2 over the tokens of the texts; tokens that belong to the prefix are absent in both."""
    total = left[0].new_zeros((), dtype=torch.float32)
    for mine, theirs in zip(left, wanted, strict=True):
        if mask is None:
            total = total + functional.mse_loss(mine.float(), theirs.float()) / 2
        else:
            # Tokens that belong to the prefix were cut off at the front, so both end alike.
            real = mask[:, mask.shape[1] - mine.shape[1] :].bool().to(mine.device)
            total = total + functional.mse_loss(mine.float()[real], theirs.float()[real]) / 2
    return total


@dataclass(frozen=True, eq=False)
class _Trained(Prefix):
    """A prefix whose keys and values are parameters."""

    pairs: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    @classmethod
    def of(cls, prefix: Prefix) -> _Trained:  # type: ignore[override]
        same = {one.name: getattr(prefix, one.name) for one in fields(Prefix)}
        pairs = [
            (key.detach().clone().requires_grad_(), value.detach().clone().requires_grad_())
            for key, value in keys_and_values(prefix.held)
        ]
        return cls(**same, pairs=pairs)

    @property
    def parameters(self) -> list[Tensor]:
        return [tensor for pair in self.pairs for tensor in pair]

    def cache(self, rows: int = 1) -> Cache:
        cache = super().cache(rows)
        for layer, (key, value) in zip(cache.layers, self.pairs, strict=True):
            # Expanded, not copied: the gradients of all rows add up. Layers concatenate, so no view is written to.
            layer.keys, layer.values = (x.expand(rows, -1, -1, -1) for x in (key, value))
        return cache

    def filled(self, cache: Cache) -> Cache:
        """A cache with the trained keys and values."""
        for layer, (key, value) in zip(cache.layers, self.pairs, strict=True):
            layer.keys, layer.values = key.detach().clone(), value.detach().clone()
        return cache


def _left(model: nn.Module, batch: dict[str, Any]) -> list[Tensor]:
    """The output of each block in one pass."""
    outputs: list[Tensor] = []

    def keep(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        outputs.append(output[0] if isinstance(output, tuple | list) else output)

    with ExitStack() as stack:
        for block in Stream.of(model).blocks:
            stack.callback(block.register_forward_hook(keep).remove)
        model(**batch)
    return outputs
