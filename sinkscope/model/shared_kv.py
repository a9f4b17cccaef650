"""Layers that attend to another layer's keys and values: layer-condensed caches.

Layer l reads what layer t_l = `config.kv_layers[l]` made. From below (t_l < l), or from itself, that exists already.
From above (t_l > l) it takes the keys and values of an earlier run over the layers; there a token does not see itself.
Token t then depends only on tokens before it, so n runs are exact for the first n tokens, whatever the first run began
with (zeros). Source: Wu & Tu 2024; whyNLP/LCKV, models/modeling_lckv.py.

Training takes `kv_iterations` runs without gradient and `kv_gradient_iterations` with it, and never more than there are
tokens. Evaluation runs until nothing changes, hence exactly what decoding token by token gives; the released code stops
after as many runs as in training. Only layers between the first that reads from above and the last it reads from run
again, and only their last run is seen by hooks, observers and interventions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import Cache, cache_utils
from transformers.cache_utils import DynamicLayer, StaticLayer

from sinkscope.attention import Strict, Visibility
from sinkscope.errors import InputError
from sinkscope.hooks import unobserved
from sinkscope.model.config import LabConfig

KeysValues = tuple[Float[Tensor, "batch kv_heads _ dim"], Float[Tensor, "batch kv_heads _ dim"]]

# Placeholders in a cache for layers that read another layer's keys; transformers 5.17 has none.
KEYLESS: tuple[type, ...] = tuple(filter(None, [getattr(cache_utils, "DummyLayer", None)]))


@dataclass(frozen=True, eq=False)
class Exchange:
    """Keys and values that layers pass to each other in one run.

    `before`: of this pass's tokens as the run before made them, by supplying layer; `past`: of earlier tokens, from the
    cache; `visible`: each layer's mask; `cache`: where those of this run are put, None but in the last one. `made`
    (this pass's tokens) and `whole` (with earlier ones) fill while the layers run.
    """

    suppliers: list[int]
    kv_heads: int
    visible: Sequence[Visibility]
    past: Mapping[int, KeysValues]
    cache: Cache | None = None
    before: Mapping[int, KeysValues] = field(default_factory=dict)
    made: dict[int, KeysValues] = field(default_factory=dict)
    whole: dict[int, KeysValues] = field(default_factory=dict)

    def of(
        self, layer: int, query: Float[Tensor, "batch heads token dim"], made: KeysValues | None
    ) -> tuple[Tensor, Tensor, Visibility]:
        """Keys, values and mask for a layer, which first hands in what it `made` of this pass's tokens, if anything."""
        if made is not None:
            self.made[layer], self.whole[layer] = made, self._kept(layer, made)
        # `whole` has the supplier's entry by now: layers run in order, and those below the repeated ones ran before.
        supplier = self.suppliers[layer]
        if supplier <= layer:
            return *self.whole[supplier], self.visible[layer]
        # (batch, kv_heads, token, dim), for the first run, which has none before it.
        nothing = query.new_zeros(len(query), self.kv_heads, *query.shape[2:])
        known = self._behind_past(supplier, self.before.get(supplier, (nothing, nothing)))
        # Strict: its own key from the run before would make a token depend on itself, and runs need not settle.
        return *known, self.visible[layer].narrowed(Strict())

    def repeats(self) -> bool:
        """Whether this run made, to the last bit, what the one before had made: so would every further one."""
        return all(
            layer in self.before and all(map(torch.equal, self.before[layer], made))
            for layer, made in self.made.items()
        )

    def _kept(self, layer: int, made: KeysValues) -> KeysValues:
        if self.cache is None:
            return self._behind_past(layer, made)
        key, value = self.cache.update(*made, layer)
        seen = self.visible[layer].key.count  # a static cache hands out its whole buffer, filled or not
        return key[:, :, :seen], value[:, :, :seen]

    def _behind_past(self, layer: int, made: KeysValues) -> KeysValues:
        if layer not in self.past:
            return made
        return torch.cat([self.past[layer][0], made[0]], 2), torch.cat([self.past[layer][1], made[1]], 2)


def run_layers(
    layers: nn.ModuleList,
    hidden_states: Float[Tensor, "batch position width"],
    config: LabConfig,
    cache: Cache | None,
    visible: Sequence[Visibility],
    **layer_inputs: Any,
) -> Float[Tensor, "batch position width"]:
    """The residual stream after the last layer.

    Args:
        layers: All layers of the model.
        hidden_states: The residual stream before the first.
        config: The model's.
        cache: Keys and values of earlier tokens, to which this pass's are added; None: no cache.
        visible: Each layer's mask.
        layer_inputs: Further arguments of every layer.

    Raises `InputError` for a cache whose keys cannot be read back.
    """
    if layers.training and layers[0].gradient_checkpointing:
        _check_checkpointing(layers[0])
        cache = None  # transformers takes the cache from layers that run twice: recomputing would append keys again
    tokens, suppliers = visible[0], config.suppliers
    queries = tokens.query.count
    past = _past(cache, sorted(set(suppliers)), tokens.key.count - queries)
    begin = partial(Exchange, suppliers, config.kv_heads, visible, past)

    def run(part: Iterable[nn.Module], states: Tensor, exchange: Exchange) -> Tensor:
        for layer in part:
            mask = visible[cast(Any, layer.self_attn).layer_idx]
            states = layer(states, visibility=mask, shared=exchange, **layer_inputs)
        return states

    again, before = _repeated(suppliers), dict[int, KeysValues]()
    runs = _with_gradient(config, queries, layers.training) if again else []
    # Twins share all parameters and have no hooks, so observers see only the last run.
    twins = [unobserved(layer) for layer in layers[again.start : again.stop]] if runs else []
    lower = begin(cache)  # layers below run once, so they write the cache at once; repeated ones only in the last run
    hidden_states = run(layers[: again.start], hidden_states, lower)
    for with_gradient in runs:
        exchange = begin(None, before, whole=dict(lower.whole))
        # A caller's no_grad stays in force: set_grad_enabled(True) alone would override it.
        with torch.set_grad_enabled(with_gradient and torch.is_grad_enabled()):
            run(twins, hidden_states, exchange)
        if not layers.training and not torch.compiler.is_compiling() and exchange.repeats():
            break  # not in training, whose number of runs is part of the recipe, nor compiled, where no data may branch
        before = exchange.made
    return run(layers[again.start :], hidden_states, begin(cache, before, whole=dict(lower.whole)))


def _repeated(suppliers: list[int]) -> range:
    """The layers that run more than once: from the first that reads from above to the last that is read from below."""
    upward = [(layer, supplier) for layer, supplier in enumerate(suppliers) if supplier > layer]
    return range(upward[0][0], max(supplier for _, supplier in upward) + 1) if upward else range(0)


def _with_gradient(config: LabConfig, queries: int, training: bool) -> list[bool]:
    """The runs before the last one, and through which of them gradients flow."""
    if not training:
        # With the final one as many runs as queries, after which every token is exact.
        return [True] * (queries - 1)
    runs = min(config.kv_iterations + config.kv_gradient_iterations, queries)
    with_gradient = min(config.kv_gradient_iterations, runs)
    # One fewer with gradient: the final run, which is not in this list, has it always.
    return [False] * (runs - with_gradient) + [True] * (with_gradient - 1)


def _past(cache: Cache | None, suppliers: list[int], seen: int) -> dict[int, KeysValues]:
    if cache is None or seen == 0:
        return {}
    kept = {}
    for supplier in suppliers:
        layer = cache.layers[supplier]
        # Exact types: subclasses such as sliding windows drop keys, or store them rounded.
        if type(layer) not in (DynamicLayer, StaticLayer):
            raise InputError(f"shared keys and values cannot be read back from a {type(layer).__name__} of a cache")
        kept[supplier] = layer.keys[:, :, :seen], layer.values[:, :, :seen]
    return kept


def _check_checkpointing(layer: nn.Module) -> None:
    checkpoint: Any = layer._gradient_checkpointing_func
    if checkpoint.keywords.get("use_reentrant", True):
        raise InputError("gradient checkpointing of shared keys and values needs use_reentrant=False")
