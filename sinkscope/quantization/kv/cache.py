"""A quantized cache that keeps chosen tokens in full precision, for an unmodified `generate()`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jaxtyping import Bool
from torch import Tensor, nn
from transformers.cache_utils import DynamicLayer, LinearAttentionAndFullAttentionLayer

from sinkscope.caches import FollowingCache
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.grids import Grid
from sinkscope.hooks import Forward, family, text_config, unobserved, unwrapped
from sinkscope.model import LabForCausalLM
from sinkscope.model.columns import every_column, own_columns
from sinkscope.quantization.kv.layer import HybridSinkQuantizedLayer, SinkQuantizedLayer
from sinkscope.quantization.kv.scheme import Scheme
from sinkscope.quantization.protected import Protect, among, in_a_pass, resolved
from sinkscope.registry import renamed_argument
from sinkscope.sinks import Measured, Sum, Tokens

READ = ("input_ids", "inputs_embeds", "attention_mask", "document_ids")  # of a first pass, to find tokens in


class SinkQuantizedCache(FollowingCache):
    """A cache whose layers of full attention hold rounded keys and values. Made by `quantized_cache`.

    `left_alone`: layers that keep what transformers keeps, such as sliding windows and recurrent states.
    """

    drops = False

    def __init__(self, model: nn.Module, scheme: Scheme, protect: Protect | None = None) -> None:
        scheme.check_stored()
        super().__init__(model)
        model = unwrapped(model)
        config = text_config(model)
        if getattr(config, "num_kv_shared_layers", 0) or getattr(config, "shares_kv", False):
            raise UnsupportedModelError(
                f"family '{family(model)}' has layers that read another layer's keys, not from the cache: use a "
                "DynamicCache"
            )
        self.scheme, self.protect = scheme, protect
        width = config.head_dim if isinstance(model, LabForCausalLM) else None
        kinds = full_layers(model)
        if not kinds:
            raise no_full_layer(model)
        for index in kinds:
            layer = self.layers[index]
            hybrid = isinstance(layer, LinearAttentionAndFullAttentionLayer)
            self.layers[index] = (
                HybridSinkQuantizedLayer(scheme, width, number_of_states=layer.number_of_states)
                if hybrid
                else SinkQuantizedLayer(scheme, width)
            )
        self._ids: Tensor | None = None  # so far, where a choice is known by its texts

    @property
    def quantized(self) -> list[SinkQuantizedLayer]:
        """The layers that round."""
        return [layer for layer in self.layers if isinstance(layer, SinkQuantizedLayer)]

    @property
    def left_alone(self) -> list[int]:
        return [index for index, layer in enumerate(self.layers) if not isinstance(layer, SinkQuantizedLayer)]

    def begin(self, forward: Forward, given: Mapping[str, Any]) -> dict[str, Any]:
        added = super().begin(forward, given)
        mask = None if self.protect is None else self._chosen(self.protect, forward, {**given, **added})
        for layer in self.quantized:
            layer.protect(mask)
        return added

    def crop(self, *args: Any, **kwargs: Any) -> None:
        raise InputError(
            "what this cache rounded cannot be taken back, so it cannot be cropped: assisted decoding and prompt "
            "lookup need a DynamicCache"
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
        self, protect: Protect, forward: Forward, given: Mapping[str, Any]
    ) -> Bool[Tensor, "batch position"] | None:
        """Which tokens of the coming pass are protected."""
        model = self._the_model()
        if not in_a_pass(protect):
            if forward.seen:
                return None
            text = {name: given[name] for name in READ if isinstance(given.get(name), Tensor)}
            protect = resolved(_by_text(protect), unobserved(model), text)
        every = every_column(model, forward, given, self._ids)
        if isinstance(protect, Tokens) and protect.rows is not None:
            self._ids = every.ids
        return among(protect, own_columns(every, forward))


@renamed_argument("spared", "protect")
def quantized_cache(
    model: nn.Module,
    keys: Grid,
    values: Grid,
    protect: Protect | None = None,
    window: int = 0,
    *,
    before_rotation: bool = False,
) -> SinkQuantizedCache:
    """A cache for `model.generate(..., past_key_values=cache)` that holds packed codes.

        cache = quantized_cache(model, Grid(2, "channel", group=32), Grid(2, "token"), Measured())

    `keys`, `values`: grids of 1 to 8 bits over a "token" or over a "channel" with a group of tokens; 16 bits leave them
    as they are. Tokens close in blocks, once (`Scheme`): a block is rounded when all of its tokens are there and behind
    the newest `window`, from what the model made, and never again. Protected tokens and those that are not closed stay
    in full precision. A prompt sees itself in full precision. Ranges are stored in 16 bits.

    `protect`: choices by place or by id hold for all tokens that come; those that need a look at texts (`Measured`
    …) are looked for in the first pass, which costs a further pass of the model, in each row by itself, so that no row
    depends on those beside it. Rows may be padded on the left: each
    is rounded as it would be alone. Beams may reorder it; it cannot be cropped, and gradients do not go through it.

    With KIVI's grids, keys over a channel and values over a token, this is KIVI but for two things: values wait for
    the keys' block, and windows are counted in tokens that are never rounded early. Layers with windows and recurrent
    states are left to transformers (`left_alone`); where a latent is cached (MLA), `keys` is the grid of the latent and
    `values` that of the rotated part.

    `before_rotation` is refused: what a cache of transformers is given has been turned by its position already, and
    what it gives back goes to attention as it is, so codes of keys before rotation would be turned back and forth, all
    of them, at every token. `QuantizeCache` simulates them.

    Raises `InputError` for grids that cannot be stored, and `UnsupportedModelError` for models in whose cache no layer
    holds keys and values of all tokens. Source: Liu et al. 2024 (KIVI), and Hooper et al. 2024 for protecting tokens.
    """
    if not isinstance(model, nn.Module):
        raise InputError(
            f"quantized_cache needs the model, not its {type(model).__name__}: from its passes the cache learns "
            "padding and which tokens are protected"
        )
    if before_rotation:
        raise InputError(
            "keys before rotation cannot be stored: a cache is given keys that positions have turned, and attention "
            "reads them as they come back; QuantizeCache(..., before_rotation=True) simulates it"
        )
    return SinkQuantizedCache(model, Scheme(keys, values, window), protect)


def full_layers(model: nn.Module) -> list[int]:
    """Indices of the layers whose cache holds keys and values of all tokens."""
    from transformers import DynamicCache

    config = text_config(model)
    kinds = getattr(config, "layer_types", None)
    layers: list[Any] = DynamicCache(config=config).layers
    found = []
    for index, layer in enumerate(layers):
        kind = kinds[index] if kinds else None
        hybrid = type(layer) is LinearAttentionAndFullAttentionLayer
        if hybrid or (type(layer) is DynamicLayer and kind in (None, "full_attention")):
            found.append(index)
    return found


def no_full_layer(model: nn.Module) -> UnsupportedModelError:
    """The error for a model in whose cache nothing can be rounded."""
    return UnsupportedModelError(
        f"family '{family(model)}' has no layer of plain full attention, whose cache holds keys and values of all "
        "tokens: there is nothing to quantize"
    )


def _by_text(protect: Protect) -> Protect:
    """Sinks of each text by itself: there are no other texts from which positions could be known."""
    if isinstance(protect, Sum):
        return Sum(tuple(replace(one, by="row") if isinstance(one, Measured) else one for one in protect.parts))
    return replace(protect, by="row") if isinstance(protect, Measured) else protect
