"""What a quantized cache does to a model, simulated inside any pass."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from sinkscope.caches import Rotation, measured_rotations
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import Editor, OpenStream, family, parameters
from sinkscope.hooks.names import LATENT
from sinkscope.interventions import Intervention
from sinkscope.quantization.grid import Grid
from sinkscope.quantization.kv.cache import full_layers, no_full_layer
from sinkscope.quantization.kv.rounding import Front, rounded
from sinkscope.quantization.kv.scheme import Scheme
from sinkscope.quantization.kv.softmax import TwoVersions, check_same, two_versions
from sinkscope.quantization.spared import Spared, SparedInPass, others_of


@dataclass(frozen=True)
class QuantizeCache(Intervention):
    """Every query meets the keys and values that a quantized cache would hold when its token comes.

    In all layers of full attention, whose cache holds all tokens; sliding windows are left alone. Key and value of
    token j are rounded for the queries t ≥ j for which ⌈(j + 1) / block⌉ · block + window ≤ t + 1, positions counted in
    real tokens: the text is read as if its tokens came one by one (`Scheme` says when ranges close). So nothing looks
    ahead, and logits are those of `quantized_cache` fed a token at a time. Spared tokens stay as they are, and count
    for no range.

    `before_rotation`: keys are rounded as they are before positions turn them (KVQuant), by the rotation that is
    measured. Grids over a token, without a window, leave one version of every key, and hold for any attention; others
    need a plain softmax through SDPA or eager masks. There the output is exact, while observers of the same pass are
    shown every closed key rounded, also for the queries that it is not rounded for yet.

    Control: as many random other tokens spared. Raises `UnsupportedModelError` for models without such a cache, with a
    latent in it (MLA, whose `quantized_cache` works) or with attention of another kind where a block is open, and
    `InputError` for passes over a cache that dropped or rounded keys itself, and for packed documents with
    `before_rotation`. Sources: Liu et al. 2024 (KIVI), Hooper et al. 2024 (KVQuant).
    """

    keys: Grid
    values: Grid
    spared: Spared | None = None
    window: int = 0
    before_rotation: bool = False

    def __post_init__(self) -> None:
        Scheme(self.keys, self.values, self.window)

    @property
    def scheme(self) -> Scheme:
        return Scheme(self.keys, self.values, self.window)

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        _check(model)
        opened = OpenStream(model, stack)
        if opened.stream.stack != "decoder":
            raise no_full_layer(model)
        full = set(full_layers(model))
        modules = {
            module: getattr(module, "layer_idx", None)
            for module in opened.stream.attention(model)
            if getattr(module, "layer_idx", None) in full
        }
        if not modules:
            raise no_full_layer(model)
        for module in modules:
            if set(LATENT) <= {name for name, _ in module.named_children()}:
                raise UnsupportedModelError(
                    f"family '{family(model)}' caches a latent, not the keys that attention meets: use quantized_cache"
                )
        spared = SparedInPass(model, self.spared, stack)
        opened.require(*([module] for module in modules))
        rotations = _rotations(model) if self.before_rotation else {}
        turned = {module: rotations.get(index) for module, index in modules.items()}  # type: ignore[arg-type]
        opened.edit_attention(_Rounding(self.scheme, opened, spared, turned, self.before_rotation))

    def control(self, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> QuantizeCache:
        return replace(self, spared=others_of(self.spared, generator, model, inputs))

    def describe(self) -> dict[str, Any]:
        return {
            "name": "QuantizeCache",
            **self.scheme.describe(),
            "spared": None if self.spared is None else self.spared.describe(),
            "before_rotation": self.before_rotation,
        }


@dataclass(frozen=True, eq=False)
class _Rounding(Editor):
    """Rounds what attention functions are given. `turned`: how each layer turns its keys."""

    scheme: Scheme
    opened: OpenStream
    spared: SparedInPass
    turned: Mapping[nn.Module, Rotation | None]
    before_rotation: bool
    met: dict[nn.Module, TwoVersions] = field(default_factory=dict)
    checked: set[nn.Module] = field(default_factory=set)

    def edits(self, module: nn.Module) -> bool:
        return module in self.turned

    def given(self, module: nn.Module, implementation: str | None, arguments: dict[str, Any]) -> dict[str, Any]:
        self.opened.edited(module)
        key, value, queries = arguments["key"], arguments["value"], arguments["query"].shape[2]
        start = self.opened.seen
        total = start + queries
        if key.shape[2] != total:
            raise InputError(
                f"attention is given {key.shape[2]} keys for {total} tokens: the cache dropped some, or has room for "
                "more; simulate a quantized cache without a cache or with a DynamicCache"
            )
        if self.scheme.exact:
            return arguments
        tokens = self.opened.tokens(0, total, key.device)
        real = torch.ones_like(tokens.order, dtype=torch.bool) if tokens.valid is None else tokens.valid
        front = Front(tokens.valid)
        left = front.mask((self.spared.so_far.to(key.device) | ~real).expand(len(key), -1))
        new_key = self._keys(module, key, front, left)
        new_value = front.back(rounded(front.to(value), self.scheme.values, left))
        if not self.scheme.at_once:
            index = tokens.order
            closes = (index // self.scheme.block + 1) * self.scheme.block + self.scheme.window
            rounds = closes[:, None, :] <= index[:, start:, None] + 1
            made = two_versions(
                module, implementation, arguments, (new_key, new_value), rounds.expand(len(key), -1, -1)
            )
            self.met[module] = made
        return arguments | {"key": new_key, "value": new_value}

    def returned(self, module: nn.Module, output: Tensor) -> Tensor:
        made = self.met.pop(module, None)
        if made is None:
            return output
        if module not in self.checked:
            check_same(module, output, made.all_rounded(), self._real(output))
            self.checked.add(module)
        return made.output()

    def _real(self, output: Tensor) -> Bool[Tensor, "_ query"]:
        start = self.opened.seen
        valid = self.opened.tokens(start, start + output.shape[1], output.device).valid
        return torch.ones(1, output.shape[1], dtype=torch.bool, device=output.device) if valid is None else valid

    def _keys(self, module: nn.Module, key: Tensor, front: Front, left: Tensor) -> Tensor:
        keys, rotation = front.to(key), self.turned[module]
        if not self.before_rotation or rotation is None:
            return front.back(rounded(keys, self.scheme.keys, left))
        columns = self.spared.every
        if not torch.equal(columns.order, columns.index):
            raise InputError("packed documents count their positions anew: before_rotation needs one document a row")
        places = torch.arange(keys.shape[2], device=keys.device)
        found = rotation.turn(rounded(rotation.turn(keys, -places), self.scheme.keys, left), places)
        return front.back(torch.where(left[:, None, :, None], keys, found))


def _check(model: nn.Module) -> None:
    if "past_key_values" not in parameters(model).parameters or not getattr(model.config, "is_causal", True):
        raise UnsupportedModelError(f"family '{family(model)}' has no cache of keys and values to quantize")


def _rotations(model: nn.Module) -> dict[int, Rotation | None]:
    found = measured_rotations(model)
    if any(rotation.values is not None for rotation in found.values()):
        raise UnsupportedModelError(f"family '{family(model)}' turns cached values: its keys cannot be turned back")
    return {index: rotation.keys for index, rotation in found.items()}
