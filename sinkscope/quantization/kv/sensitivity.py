"""Codebooks for keys and values, fitted to the sensitivity of the loss (KVQuant)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sinkscope.caches import Rotation
from sinkscope.errors import InputError
from sinkscope.grids import SHARE, Codebooks, LayerCodes, check_codebooks, levels_of, outlying, token_range
from sinkscope.hooks import Editor, OpenStream, batches, checked_inputs, evaluating, unwrapped, without_cache
from sinkscope.quantization.kv.cached import full_modules, rotations_of
from sinkscope.quantization.kv.rounding import RealFirst
from sinkscope.quantization.protected import Protect, ProtectedInPass, resolved_for_passes
from sinkscope.registry import renamed_argument


@renamed_argument("spared", "protect")
def find_codebooks(
    model: nn.Module,
    inputs: Any,
    bits: int,
    *,
    outliers: float = SHARE,
    protect: Protect | str | None = None,
    batch_size: int = 8,
) -> Codebooks:
    """`Codebooks` for a model's keys and values, from texts as it will read them: one pass and its gradient.

    Args:
        model: A decoder whose cache holds keys and values.
        inputs: As in `measure`.
        bits: Of a code, 1 to 8.
        outliers: Share of numbers that stay unchanged, 0 to ½; 1 % by default, as in the paper.
        protect: Tokens that calibration leaves out; None: none.
        batch_size: Samples per pass.

    Raises `InputError` for bits or shares out of range and texts of one token; `UnsupportedModelError` as
    `QuantizeCache` does. Source: Hooper et al. 2024 (KVQuant).
    """
    check_codebooks(bits, outliers)
    model = unwrapped(model)
    checked, samples = checked_inputs(model, inputs, batch_size)
    protect = resolved_for_passes(protect, model, checked)
    rotations = rotations_of(model)
    with ExitStack() as stack, evaluating(model), torch.enable_grad():
        opened = OpenStream(model, stack)
        modules = full_modules(model, opened)
        reading = _GradientReading(opened, ProtectedInPass(model, protect, stack), modules, rotations)
        opened.edit_attention(reading)
        for batch in batches(model, checked, samples, batch_size):
            reading.note(_loss(model(**batch, **without_cache(model)).logits, batch))
    count = 2**bits
    return Codebooks(bits, outliers, {index: _codes(rows, outliers, count) for index, rows in reading.rows().items()})


@dataclass
class _Sensitivities:
    """For one layer: keys before rotation and values (token, heads, dim), and the gradient of the loss in each."""

    key: Tensor
    value: Tensor
    key_grad: Tensor
    value_grad: Tensor


@dataclass(eq=False)
class _GradientReading(Editor):
    """Adds zeros to keys and values, so that the loss has a gradient there."""

    opened: OpenStream
    protected: ProtectedInPass
    modules: Mapping[nn.Module, int]
    rotations: Mapping[int, Rotation | None]
    met: dict[nn.Module, tuple[Tensor, Tensor, Tensor, Tensor]] = field(default_factory=dict)
    samples_of: dict[int, list[_Sensitivities]] = field(default_factory=dict)
    kept: Tensor | None = None
    front: RealFirst | None = None

    def edits(self, module: nn.Module) -> bool:
        return module in self.modules

    def given(self, module: nn.Module, implementation: str | None, arguments: dict[str, Any]) -> dict[str, Any]:
        self.opened.edited(module)
        key, value = arguments["key"], arguments["value"]
        probes = torch.zeros_like(key, requires_grad=True), torch.zeros_like(value, requires_grad=True)
        self.met[module] = key.detach(), value.detach(), *probes
        tokens = self.opened.tokens(0, key.shape[2], key.device)
        real = torch.ones_like(tokens.order, dtype=torch.bool) if tokens.valid is None else tokens.valid
        self.front = RealFirst(tokens.valid)
        self.kept = self.front.mask((real & ~self.protected.so_far.to(key.device)).expand(len(key), -1))
        return arguments | {"key": key + probes[0], "value": value + probes[1]}

    def note(self, loss: Tensor) -> None:
        """Take the gradients of a finished pass."""
        assert self.front is not None
        assert self.kept is not None
        # Keys and values in turn, the order in which `next` takes the gradients below.
        probes = [probe for *_, one, two in self.met.values() for probe in (one, two)]
        grads = iter(torch.autograd.grad(loss, probes))
        for module, (key, value, *_) in self.met.items():
            index = self.modules[module]
            parts = [self.front.to(x) for x in (key, next(grads), value, next(grads))]
            rotation = self.rotations.get(index)
            if rotation is not None:  # a rotation is its own Jacobian, so gradients are rotated back the same way
                places = -torch.arange(key.shape[2], device=key.device)
                parts[:2] = [rotation.turn(x, places) for x in parts[:2]]
            chosen = [x.transpose(1, 2)[self.kept].float().cpu() for x in parts]
            self.samples_of.setdefault(index, []).append(_Sensitivities(chosen[0], chosen[2], chosen[1], chosen[3]))
        self.met.clear()

    def rows(self) -> dict[int, _Sensitivities]:
        """All numbers read so far, by layer."""
        names = ("key", "value", "key_grad", "value_grad")
        return {
            index: _Sensitivities(*(torch.cat([getattr(one, name) for one in parts]) for name in names))
            for index, parts in self.samples_of.items()
        }


def _codes(rows: _Sensitivities, outliers: float, count: int) -> LayerCodes:
    if not len(rows.key):
        raise InputError("every token is protected: no token is left to fit levels to")
    key, grad = rows.key, rows.key_grad
    # Ends are keys that occur: an interpolated end could lie far out, between an outlier and the next key.
    low = torch.quantile(key, outliers / 2, 0, interpolation="higher")
    high = torch.quantile(key, 1 - outliers / 2, 0, interpolation="lower")
    half, inside = (high - low) / 2, (key >= low) & (key <= high)
    inside = inside & (half > 0)
    scaled = (key - (high + low) / 2) / half.clamp(min=1e-30)
    # An error e of the scaled key is e · half in the key, so its cost F (e · half)² has the weight F · half².
    weights = (grad * half) ** 2
    keys = _levels(scaled, weights, inside, count)
    value = rows.value.transpose(0, 1)[None]  # one row, (1, heads, token, dim)
    aside = outlying(value, outliers)
    least, most = token_range(value, aside)
    half = (most - least) / 2
    scaled = (value - (most + least) / 2) / half.clamp(min=1e-30)
    weights = (rows.value_grad.transpose(0, 1)[None] * half) ** 2
    return LayerCodes(low, high, keys, _levels(scaled, weights, ~aside & (half > 0), count))


def _levels(scaled: Tensor, weights: Tensor, counted: Tensor, count: int) -> Tensor:
    if not bool(counted.any()):
        return torch.linspace(-1, 1, count)
    return levels_of(scaled[counted], weights[counted], count)


def _loss(logits: Tensor, batch: Mapping[str, Any]) -> Tensor:
    """Σ −log p of the next tokens, without padding."""
    ids, mask = batch["input_ids"], batch.get("attention_mask")
    if ids.shape[1] < 2:
        raise InputError("texts of one token have no next token, hence no loss: give at least two tokens")
    nll = -logits[:, :-1].float().log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    # A sum: a mean would make a token's gradient depend on how long its batch is.
    return nll.sum() if not isinstance(mask, Tensor) else (nll * (mask[:, 1:] & mask[:, :-1])).sum()
