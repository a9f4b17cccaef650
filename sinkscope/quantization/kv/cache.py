"""A quantized cache that keeps chosen tokens in full precision, for an unmodified `generate()`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn
from transformers.cache_utils import DynamicLayer, LinearAttentionAndFullAttentionLayer, LinearAttentionLayer

from sinkscope.caches import FollowingCache
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.grids import Blocks, Numbers, Rotated, rotation_of
from sinkscope.hooks import Forward, family, text_config, unobserved, unwrapped, with_cache
from sinkscope.model import LabForCausalLM
from sinkscope.model.columns import every_column, own_columns
from sinkscope.quantization.kv.layer import HybridSinkQuantizedLayer, SinkQuantizedLayer
from sinkscope.quantization.kv.rotated import plain_readers, turn_attention
from sinkscope.quantization.kv.scheme import CacheScheme
from sinkscope.quantization.protected import Protect, among, in_a_pass, protect_of, resolved
from sinkscope.registry import renamed_argument
from sinkscope.sinks import Measured, Sum, Tokens

READ = ("input_ids", "inputs_embeds", "attention_mask", "document_ids")  # inputs in which tokens are looked for


class SinkQuantizedCache(FollowingCache):
    """A cache whose layers of full attention hold rounded keys and values. Made by `quantized_cache`.

    `left_alone`: the layers that are left to transformers, such as sliding windows and recurrent states.
    """

    drops = False

    def __init__(self, model: nn.Module, scheme: CacheScheme, protect: Protect | str | None = None) -> None:
        scheme.check_stored()
        super().__init__(model)
        model = unwrapped(model)
        config = text_config(model)
        if getattr(config, "num_kv_shared_layers", 0) or getattr(config, "shares_kv", False):
            raise UnsupportedModelError(
                f"family '{family(model)}' has layers that read another layer's keys instead of the cache: use a "
                "DynamicCache"
            )
        self.scheme, self.protect = scheme, protect_of(protect)
        width = config.head_dim if isinstance(model, LabForCausalLM) else None
        for index in rounded_layers(model, scheme):
            layer, layer_scheme = self.layers[index], scheme.at(index)
            hybrid = isinstance(layer, LinearAttentionAndFullAttentionLayer)
            self.layers[index] = (
                HybridSinkQuantizedLayer(layer_scheme, width, number_of_states=layer.number_of_states)
                if hybrid
                else SinkQuantizedLayer(layer_scheme, width)
            )
        self._ids: Tensor | None = None  # all ids so far, if protected tokens are known by their text
        if isinstance(scheme.keys, Rotated) or isinstance(scheme.values, Rotated):
            plain = plain_readers(model)
            for index, rounding in enumerate(self.layers):
                if isinstance(rounding, SinkQuantizedLayer):
                    rounding.stays_turned = index in plain
            self._turn(model)

    def _hook(self, model: nn.Module) -> None:
        super()._hook(model)
        if any(layer.stays_turned for layer in self.quantized):  # a copy: the original is hooked when its layers exist
            self._turn(model)

    def _turn(self, model: nn.Module) -> None:
        """Rotate queries and outputs in the layers that return keys and values as they are stored."""
        if not any(layer.stays_turned for layer in self.quantized):
            return
        # No reference to the cache, which `turn_attention` would keep alive.
        schemes = {
            index: layer.scheme
            for index, layer in enumerate(self.layers)
            if isinstance(layer, SinkQuantizedLayer) and layer.stays_turned
        }

        def turns(index: int, query: int, output: int) -> tuple[Blocks | None, Blocks | None]:
            layer_scheme = schemes.get(index)
            return (
                (None, None)
                if layer_scheme is None
                else (rotation_of(layer_scheme.keys, query), rotation_of(layer_scheme.values, output))
            )

        turn_attention(model, self, turns)

    @property
    def quantized(self) -> list[SinkQuantizedLayer]:
        """The layers that round."""
        return [layer for layer in self.layers if isinstance(layer, SinkQuantizedLayer)]

    @property
    def left_alone(self) -> list[int]:
        return [index for index, layer in enumerate(self.layers) if not isinstance(layer, SinkQuantizedLayer)]

    def keep_decoded(self) -> SinkQuantizedCache:
        """Keep decoded blocks besides their codes, and return the cache: for measurements.

        A token then takes no longer than with a full cache, and no memory is saved; `held_bytes` still counts what the
        format holds. Raises `InputError` where tokens are cached already.
        """
        if self.get_seq_length():
            raise InputError("keep_decoded: tokens are cached already; call it on a new cache")
        for layer in self.quantized:
            layer.keeps_decoded = True
        return self

    @property
    def until_rounding(self) -> int:
        """How many tokens may come in one pass and read what each would read alone, at least 1.

        The token that completes a block reads it rounded if it comes alone, and unrounded with others.
        """
        layer, scheme = self.quantized[0], self.scheme
        rows = [layer.seen - pads for pads in ([0] if layer.pads is None else layer.pads.tolist())]
        return max(1, min(scheme.closed(tokens) + scheme.block + scheme.window - tokens for tokens in rows) - 1)

    def begin(self, forward: Forward, arguments: Mapping[str, Any]) -> dict[str, Any]:
        added = super().begin(forward, arguments)
        mask = None if self.protect is None else self._chosen(self.protect, forward, {**arguments, **added})
        for layer in self.quantized:
            layer.protect(mask)
        return added

    @torch.no_grad()
    def take_over(self, ids: Tensor, states: Sequence[tuple[Tensor, Tensor]]) -> bool:
        """Hold what a first pass over `ids` leaves: `states` are every layer's keys and values in full precision.

        A prompt sees itself in full precision, so one pass serves any number of caches. False, and nothing done, where
        a layer keeps other things than keys and values of all tokens.
        """
        plain = (SinkQuantizedLayer, DynamicLayer)
        if not all(type(layer) in plain for layer in self.layers) or len(states) != len(self.layers):
            return False
        model = self._the_model()
        inputs = {"input_ids": ids, "use_cache": True} | with_cache(model, self)
        # `update` refuses states that no pass announced.
        self.begin(Forward.of(model, (), inputs), inputs)
        for layer, (keys, values) in zip(self.layers, states, strict=True):
            layer.update(keys, values)
        return True

    def crop(self, *args: Any, **kwargs: Any) -> None:
        raise InputError(
            "a quantized cache cannot be cropped, since closed blocks lose the original numbers: assisted decoding and "
            "prompt lookup need a DynamicCache"
        )

    def reset(self) -> None:
        super().reset()
        self._ids = None

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        self._ids = None if self._ids is None else self._ids.repeat_interleave(repeats, 0)

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        self._ids = None if self._ids is None else self._ids[indices.to(self._ids.device)]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        super().reorder_cache(beam_idx)
        self._ids = None if self._ids is None else self._ids.index_select(0, beam_idx.to(self._ids.device))

    def _chosen(
        self, protect: Protect, forward: Forward, arguments: Mapping[str, Any]
    ) -> Bool[Tensor, "batch position"] | None:
        """Which tokens of the next pass are protected."""
        model = self._the_model()
        if not in_a_pass(protect):
            if forward.seen:
                return None
            text = {name: arguments[name] for name in READ if isinstance(arguments.get(name), Tensor)}
            # This extra pass is not the caller's: no hook, observer or cache may notice it.
            protect = resolved(_by_text(protect), unobserved(model), text)
        columns = every_column(model, forward, arguments, self._ids)
        # Rows of known texts are found by all of their ids, so those of earlier passes are kept.
        if isinstance(protect, Tokens) and protect.rows is not None:
            self._ids = columns.ids
        return among(protect, own_columns(columns, forward))


@renamed_argument("spared", "protect")
def quantized_cache(
    model: nn.Module,
    keys: Numbers,
    values: Numbers,
    protect: Protect | str | None = None,
    window: int = 0,
    *,
    ends: int = 0,
    skip: Sequence[int] = (),
    before_rotation: bool = False,
) -> SinkQuantizedCache:
    """A cache for `model.generate(..., past_key_values=cache)` that stores packed codes.

        cache = quantized_cache(model, Grid(2, "channel", group=32), Grid(2, "token"), Measured())

    With KIVI's grids (keys over a channel, values over a token) this is KIVI with two differences: values wait for the
    keys' block, and the window counts tokens that are never rounded early. A prompt sees itself in full precision. Rows
    may be padded on the left: each is rounded as it would be alone. Beams may reorder the cache; it cannot be cropped,
    and passes no gradients. Layers with windows and recurrent states are left to transformers (`left_alone`); if a
    latent is cached (MLA), `keys` is the grid of the latent and `values` that of the rotated part.

    Args:
        model: The model, from whose passes the cache learns padding and ids.
        keys: A grid of 1 to 8 bits over a "token", or over a "channel" with groups of tokens; 16 bits round nothing. Or
            a format of single vectors (`grids.RowFormat`), or either of them `grids.Rotated`.
        values: Likewise.
        protect: Tokens in full precision: a choice, its words ("first:4"), or `Tokens`. Choices by position or id apply
            to all tokens; choices that need whole texts (`Measured` …) are resolved in the first pass, which costs one
            more pass of the model, for each row alone.
        window: The newest tokens, in full precision.
        ends: So many first and last layers stay as they are (`rounded_layers`).
        skip: Numbers of further layers that stay as they are.
        before_rotation: Refused: a transformers cache gets rotated keys, and attention reads them as they come back, so
            all keys would be rotated back and forth at each token. `QuantizeCache` simulates it.

    Ranges are stored in 16 bits. Raises `InputError` for grids that cannot be stored and a `protect` that is no choice
    of tokens, and `UnsupportedModelError` for models without a cache layer that holds keys and values of all tokens.
    Source: Liu et al. 2024 (KIVI), and Hooper et al. 2024 for protecting tokens.
    """
    if not isinstance(model, nn.Module):
        raise InputError(
            f"quantized_cache needs the model, not its {type(model).__name__}: its passes tell the cache "
            "about padding and protected tokens"
        )
    if before_rotation:
        raise InputError(
            "keys before rotation cannot be stored: a cache gets rotated keys, and attention reads them as they come "
            "back; QuantizeCache(..., before_rotation=True) simulates it"
        )
    return SinkQuantizedCache(model, CacheScheme(keys, values, window, ends, tuple(skip)), protect)


def full_layers(model: nn.Module) -> list[int]:
    """The indices of the layers whose cache holds keys and values of all tokens."""
    from transformers import DynamicCache

    config = text_config(model)
    kinds = getattr(config, "layer_types", None)
    layers: list[Any] = DynamicCache(config=config).layers
    indices = []
    for index, layer in enumerate(layers):
        kind = kinds[index] if kinds else None
        hybrid = type(layer) is LinearAttentionAndFullAttentionLayer
        # The exact type, because layers with a window are subclasses of DynamicLayer.
        if hybrid or (type(layer) is DynamicLayer and kind in (None, "full_attention")):
            indices.append(index)
    return indices


def rounded_layers(model: nn.Module, scheme: CacheScheme) -> list[int]:
    """The layers that a scheme rounds: those of full attention, without the `ends` of the model and those of `skip`.

    At most half of the layers are left at either end, and none in hybrids with recurrent states, as in vLLM
    (vllm/model_executor/layers/quantization/turboquant/config.py, `get_boundary_skip_layers`). Raises
    `UnsupportedModelError` if no layer has full attention, and `InputError` if nothing is left to round, and for a
    layer that the model does not have.
    """
    from transformers import DynamicCache

    full = full_layers(model)
    if not full:
        raise no_full_layer(model)
    layers: list[Any] = DynamicCache(config=text_config(model)).layers
    if (absent := max(scheme.skip, default=0)) >= len(layers):
        raise InputError(f"skip = {list(scheme.skip)}: there is no layer {absent}, only 0 to {len(layers) - 1}")
    recurrent = any(isinstance(layer, LinearAttentionLayer) for layer in layers)
    ends = 0 if recurrent else min(scheme.ends, len(layers) // 2)
    kept = [index for index in full if ends <= index < len(layers) - ends]
    if not kept:
        raise InputError(
            f"the first and last {scheme.ends} layers stay as they are, which are all {len(layers)} of this model: "
            "nothing would be rounded; give ends=0, or a scheme's name with -all"
        )
    if not (kept := [index for index in kept if index not in scheme.skip]):
        raise InputError(f"skip = {list(scheme.skip)}: no layer is left to round")
    return kept


def no_full_layer(model: nn.Module) -> UnsupportedModelError:
    """The error for a model whose cache has nothing to round."""
    return UnsupportedModelError(
        f"family '{family(model)}' has no layer of plain full attention, whose cache holds keys and values of all "
        "tokens: there is nothing to quantize"
    )


def _by_text(protect: Protect) -> Protect:
    """Sinks of each text alone: there are no other texts in which positions could be measured."""
    if isinstance(protect, Sum):
        return Sum(tuple(replace(one, by="row") if isinstance(one, Measured) else one for one in protect.parts))
    return replace(protect, by="row") if isinstance(protect, Measured) else protect
