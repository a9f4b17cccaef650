"""The effect of a quantized cache on a model, simulated in any pass."""

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
from sinkscope.grids import Codebooks, Numbers
from sinkscope.hooks import Editor, OpenStream, cache_name, family
from sinkscope.hooks.names import LATENT
from sinkscope.interventions import Intervention
from sinkscope.quantization.kv.cache import full_layers, no_full_layer, rounded_layers
from sinkscope.quantization.kv.rounding import RealFirst, rounded_states
from sinkscope.quantization.kv.scheme import CacheScheme
from sinkscope.quantization.kv.softmax import TwoVersions, check_same, two_versions
from sinkscope.quantization.protected import Protect, ProtectedInPass, described, random_tokens
from sinkscope.registry import renamed_argument


@renamed_argument("spared", "protect")
@dataclass(frozen=True)
class QuantizeCache(Intervention):
    """Every query sees the keys and values that a quantized cache would hold when its token arrives.

    This applies to all layers of full attention; sliding windows are left alone. Key and value of token j are rounded
    for the queries t ≥ j with ⌈(j + 1) / block⌉ · block + window ≤ t + 1, positions counted in real tokens: as if the
    tokens were read one by one (`CacheScheme` says when blocks close). So nothing looks ahead, and the logits are those
    of `quantized_cache` fed one token at a time. Protected tokens stay unchanged and are part of no range.

    Grids over a token without a window leave one version of each key, and work with any attention; others need a plain
    softmax by SDPA or eager masks. There the output is exact, while observers of the same pass see every closed key
    rounded, even for queries for which it is not rounded yet.

    Control: as many random other tokens protected. Raises `UnsupportedModelError` for models without such a cache, with
    a cached latent (MLA, for which `quantized_cache` works) or with another kind of attention while a block is open;
    `InputError` for passes over a cache that dropped or rounded keys itself, and for packed documents with
    `before_rotation`. Sources: Liu et al. 2024 (KIVI), Hooper et al. 2024 (KVQuant).

    Attributes:
        keys: The grid of keys, or another format of `quantized_cache`.
        values: Likewise.
        protect: Tokens in full precision, as in `quantized_cache`.
        window: The newest tokens, in full precision.
        before_rotation: Round keys before rotation (KVQuant); how each layer rotates is measured.
        codebooks: Uneven levels and outliers in full precision instead of the grids (`find_codebooks`).
        ends: So many first and last layers stay as they are (`rounded_layers`).
        skip: Numbers of further layers that stay as they are.
    """

    keys: Numbers
    values: Numbers
    protect: Protect | str | None = None
    window: int = 0
    before_rotation: bool = False
    codebooks: Codebooks | None = None
    ends: int = 0
    skip: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _ = self.scheme  # raises
        if (books := self.codebooks) is None:
            return
        if (self.keys, self.values) != books.grids or self.window or not self.before_rotation:
            raise InputError(
                "codebooks have their own grids, and keys before rotation: use QuantizeCache.of(codebooks)"
            )

    @classmethod
    def of(cls, codebooks: Codebooks, protect: Protect | str | None = None) -> QuantizeCache:
        """Keys and values on the levels of `codebooks` (KVQuant), with these tokens protected."""
        return cls(*codebooks.grids, protect, before_rotation=True, codebooks=codebooks)

    @property
    def scheme(self) -> CacheScheme:
        return CacheScheme(self.keys, self.values, self.window, self.ends, self.skip)

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        _check(model)
        opened = OpenStream(model, stack)
        modules = full_modules(model, opened, self.scheme)
        protected = ProtectedInPass(model, self.protect, stack)
        rotations = rotations_of(model) if self.before_rotation else {}
        turned = {module: rotations.get(index) for module, index in modules.items()}
        codes = None if self.codebooks is None else {module: (self.codebooks, at) for module, at in modules.items()}
        schemes = {module: self.scheme.at(index) for module, index in modules.items()}
        opened.edit_attention(_Rounding(self.scheme, schemes, opened, protected, turned, self.before_rotation, codes))

    def control(self, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> QuantizeCache:
        return replace(self, protect=random_tokens(self.protect, generator, model, inputs))

    def describe(self) -> dict[str, Any]:
        return {
            "name": "QuantizeCache",
            **self.scheme.describe(),
            "protect": described(self.protect),
            "before_rotation": self.before_rotation,
            "codebooks": None if self.codebooks is None else self.codebooks.describe(),
        }


@dataclass(frozen=True, eq=False)
class _Rounding(Editor):
    """Rounds the arguments of attention functions. `turned`: how each layer rotates its keys."""

    scheme: CacheScheme
    schemes: Mapping[nn.Module, CacheScheme]
    opened: OpenStream
    protected: ProtectedInPass
    turned: Mapping[nn.Module, Rotation | None]
    before_rotation: bool
    codes: Mapping[nn.Module, tuple[Codebooks, int]] | None = None
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
                "more; use QuantizeCache without a cache or with a DynamicCache"
            )
        if self.scheme.exact:
            return arguments
        tokens = self.opened.tokens(0, total, key.device)
        real = torch.ones_like(tokens.order, dtype=torch.bool) if tokens.valid is None else tokens.valid
        # Real tokens first, so that groups of tokens begin with each row's first token; padding is left alone.
        front = RealFirst(tokens.valid)
        left = front.mask((self.protected.so_far.to(key.device) | ~real).expand(len(key), -1))
        new_key = self._keys(module, key, front, left)
        new_value = front.back(self._rounded(module, front.to(value), left, keys=False))
        if not self.scheme.at_once:
            index = tokens.order
            closes = (index // self.scheme.block + 1) * self.scheme.block + self.scheme.window
            # (batch, query, key): whether the key is rounded once the query's token is in.
            rounds = closes[:, None, :] <= index[:, start:, None] + 1
            made = two_versions(
                module, implementation, arguments, (new_key, new_value), rounds.expand(len(key), -1, -1)
            )
            self.met[module] = made
        # The layer itself sees every key rounded; `returned` replaces its output where two versions were made.
        return arguments | {"key": new_key, "value": new_value}

    def returned(self, module: nn.Module, output: Tensor) -> Tensor:
        made = self.met.pop(module, None)
        if made is None:
            return output
        if module not in self.checked:
            # With every pair rounded, our softmax must give the layer's output, or the layer computes something else.
            check_same(module, output, made.all_rounded(), self._real(output))
            self.checked.add(module)
        return made.output()

    def _real(self, output: Tensor) -> Bool[Tensor, "_ query"]:
        start = self.opened.seen
        valid = self.opened.tokens(start, start + output.shape[1], output.device).valid
        return torch.ones(1, output.shape[1], dtype=torch.bool, device=output.device) if valid is None else valid

    def _keys(self, module: nn.Module, key: Tensor, front: RealFirst, left: Tensor) -> Tensor:
        keys, rotation = front.to(key), self.turned[module]
        if not self.before_rotation or rotation is None:
            return front.back(self._rounded(module, keys, left, keys=True))
        columns = self.protected.columns
        if not torch.equal(columns.order, columns.index):
            raise InputError("packed documents restart their positions: before_rotation needs one document per row")
        places = torch.arange(keys.shape[2], device=keys.device)
        # Real tokens come first, so a column's number is its position. Protected keys are not turned back and forth.
        turned = rotation.turn(self._rounded(module, rotation.turn(keys, -places), left, keys=True), places)
        return front.back(torch.where(left[:, None, :, None], keys, turned))

    def _rounded(self, module: nn.Module, x: Tensor, left: Tensor, keys: bool) -> Tensor:
        if self.codes is None:
            scheme = self.schemes[module]
            return rounded_states(x, scheme.keys if keys else scheme.values, left)
        books, layer = self.codes[module]
        return books.rounded_keys(layer, x, left) if keys else books.rounded_values(layer, x, left)


def full_modules(model: nn.Module, opened: OpenStream, scheme: CacheScheme | None = None) -> dict[nn.Module, int]:
    """The attention layers that a scheme rounds, by default all whose cache holds keys and values of all tokens.

    Every pass must call each of them.

    Raises `UnsupportedModelError` if there is none, and if a latent is cached.
    """
    if opened.stream.stack != "decoder":
        raise no_full_layer(model)
    full = set(full_layers(model) if scheme is None else rounded_layers(model, scheme))
    indices = {module: getattr(module, "layer_idx", -1) for module in opened.stream.attention(model)}
    modules = {module: index for module, index in indices.items() if index in full}
    if not modules:
        raise no_full_layer(model)
    for module in modules:
        if set(LATENT) <= {name for name, _ in module.named_children()}:
            raise UnsupportedModelError(
                f"family '{family(model)}' caches a latent instead of the keys that attention sees: use quantized_cache"
            )
    opened.require(*([module] for module in modules))
    return modules


def _check(model: nn.Module) -> None:
    if cache_name(model) is None or not getattr(model.config, "is_causal", True):
        raise UnsupportedModelError(f"family '{family(model)}' has no cache of keys and values to quantize")


def rotations_of(model: nn.Module) -> dict[int, Rotation | None]:
    """How each layer rotates its keys. Raises `UnsupportedModelError` if values are rotated as well."""
    rotations = measured_rotations(model)
    if any(rotation.values is not None for rotation in rotations.values()):
        raise UnsupportedModelError(f"family '{family(model)}' rotates cached values: its keys cannot be rotated back")
    return {index: rotation.keys for index, rotation in rotations.items()}
