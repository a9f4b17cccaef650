"""The attention layer of the lab model: projections around an operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from sinkscope.attention import Bias, Kept, Learned, Visibility
from sinkscope.errors import UnsupportedModelError
from sinkscope.model.config import LabConfig
from sinkscope.model.positions import Rotation, rotate
from sinkscope.model.shared_kv import Exchange
from sinkscope.model.visibility import BesideSinks


class AddedHeads(nn.Module):
    """Σ_h A_h V_h W_O with one W_O (head_dim → width) for all heads (Gu et al. 2025, Table 12).

    Takes heads concatenated in the last dimension. Equal to a projection of concatenated heads whose blocks W_O^h are
    all the same. Not in the released code; the paper writes the formula.
    """

    def __init__(self, heads: int, head_dim: int, width: int) -> None:
        super().__init__()
        self.heads, self.in_features, self.out_features = heads, heads * head_dim, width
        self.weight = nn.Parameter(torch.empty(width, head_dim))

    def forward(self, x: Float[Tensor, "batch position heads_dim"]) -> Float[Tensor, "batch position width"]:
        # W_O is common to all heads, so adding them first leaves one product instead of one per head.
        return F.linear(x.unflatten(-1, (self.heads, -1)).sum(-2), self.weight)


class ValueMix(Learned):
    """(1 − λ) v + λ v₀ of a layer's values and those of the first layer, λ learned from ½ (Zhou et al. 2024)."""

    def __init__(self) -> None:
        super().__init__()
        self.share = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.share, 0.5)

    def forward(self, value: Tensor, first: Tensor) -> Tensor:
        # lerp takes a single dtype; under autocast values are in bf16 and the share in fp32.
        return torch.lerp(value, first.to(value.dtype), self.share.to(value.dtype))


def output_map(config: LabConfig) -> nn.Module:
    """The output projection: W_O over concatenated heads, or one W_O over their sum."""
    heads, dim, width = config.num_attention_heads, config.head_dim, config.hidden_size
    if config.head_combination == "add":
        return AddedHeads(heads, dim, width)
    return nn.Linear(heads * dim, width, bias=False)


def lab_attention_forward(
    module: LabAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Visibility,
    scaling: float | None = None,
    dropout: float = 0.0,
    hidden_states: Tensor | None = None,
    carried: Tensor | None = None,
    bias: Bias | None = None,
    output_attentions: bool = False,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """The lab model's attention function in transformers' contract: (batch, query, heads, dim) and weights or None.

    Other arguments as in `Operation.forward`.

    Args:
        attention_mask: Which keys each query sees.
        dropout: Not used: the lab model has none.
        hidden_states: The block's input.
        output_attentions: Whether to return weights, which takes the reference path.
    """
    attended = module.operation(
        query,
        key,
        value,
        visibility=attention_mask,
        hidden=hidden_states,
        scaling=scaling,
        path="reference" if output_attentions else "auto",
        carried=carried,
        bias=bias,
    )
    return attended.output.transpose(1, 2), attended.weights


class LabAttention(nn.Module):
    """Projections around an attention operation, which it finds where every transformers model does."""

    def __init__(self, config: LabConfig, layer_idx: int) -> None:
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        self.head_dim = config.head_dim
        self.is_causal = config.is_causal
        heads, kv_heads, width = config.num_attention_heads, config.kv_heads, config.hidden_size
        self.q_proj = nn.Linear(width, heads * self.head_dim, bias=False)
        self.supplies = config.supplies[layer_idx]
        if self.supplies:  # a layer whose keys and values are never read makes none
            self.k_proj = nn.Linear(width, kv_heads * self.head_dim, bias=False)
            self.v_proj = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.value_mix = ValueMix() if config.value_residual and layer_idx > 0 else None
        self.o_proj = output_map(config)
        self.operation = config.specs[layer_idx].build(
            heads=heads, kv_heads=kv_heads, head_dim=self.head_dim, hidden_size=config.hidden_size, layer=layer_idx
        )
        self.scaling = self.operation.scaling

    def forward(
        self,
        hidden_states: Float[Tensor, "batch position width"],
        visibility: Visibility,
        rotation: Rotation | None,
        bias: Bias | None = None,
        past_key_values: Cache | None = None,
        shared: Exchange | None = None,
        first_values: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """The output (batch, position, width) and weights, or None.

        Args:
            hidden_states: The layer's input.
            visibility: Which keys each query sees, cached ones included.
            rotation: Of queries and keys by position; None: no rotation.
            bias: Added to the scores.
            past_key_values: The cache that keys and values go to; None: no cache.
            shared: Gives keys and values of other layers, if layers share them.
            first_values: The first layer's values, which are mixed into those of this layer.
        """
        query, made, carried = self._made(hidden_states, rotation, first_values)
        if shared is not None:
            key, value, visibility = shared.of(self.layer_idx, query, made)
        else:
            assert made is not None
            key, value = made
            if past_key_values is not None:
                seen = visibility.key.count
                key, value, carried = self._remembered(past_key_values, key, value, carried, seen)
                # After the update, in which a cache may drop keys: only then does it know which are left.
                visibility = self._kept(visibility, past_key_values, bias)
        # Looked up at each call, as in every transformers model: this lookup is what `observe` wraps.
        attend: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, lab_attention_forward
        )
        output, weights = attend(
            self,
            query,
            key,
            value,
            visibility,
            scaling=self.scaling,
            dropout=0.0,
            hidden_states=hidden_states,
            carried=carried,
            bias=bias,
            **kwargs,
        )
        return self.o_proj(output.reshape(*hidden_states.shape[:-1], -1)), weights

    def values(
        self, hidden_states: Float[Tensor, "batch position width"]
    ) -> Float[Tensor, "batch kv_heads position dim"]:
        """W_V x, by heads."""
        return self.v_proj(hidden_states).view(*hidden_states.shape[:-1], -1, self.head_dim).transpose(1, 2)

    def _made(
        self, hidden_states: Tensor, rotation: Rotation | None, first_values: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor] | None, Tensor | None]:
        """Queries; keys and values for the cache, if this layer makes any; and what tokens carry."""
        split = (*hidden_states.shape[:-1], -1, self.head_dim)
        query = self.q_proj(hidden_states).view(split).transpose(1, 2)
        # No norm of queries before this rotation: `LabConfig` refuses operations with one where layers share keys.
        if not self.supplies:
            return query if rotation is None else rotate(query, rotation), None, None
        key, value = self.k_proj(hidden_states).view(split).transpose(1, 2), self.values(hidden_states)
        if self.value_mix is not None and first_values is not None:
            value = self.value_mix(value, first_values)
        # Norms come before rotation, with which their gains per channel do not commute. Values are gated before the
        # cache, so a later step need not know the block's input at earlier tokens.
        query, key = self.operation.before_rotation(query, key)
        if rotation is not None:
            query, key = rotate(query, rotation), rotate(key, rotation)
        value, carried = self.operation.before_cache(value, hidden_states)
        return query, (key, value), carried

    def _kept(self, visibility: Visibility, cache: Cache, bias: Bias | None) -> Visibility:
        """The mask over the keys that a cache kept. Raises `UnsupportedModelError` for operations that read all
        keys.
        """
        places: Tensor | None = getattr(cache.layers[self.layer_idx], "places", None)
        # `places` exists in caches that evict; as many as there are tokens means that nothing was dropped.
        if places is None or places.shape[-1] == visibility.key.count:
            return visibility
        # A position bias has a column for each key of the text, so it would not line up with the keys that are left.
        reader = f"the bias of position '{self.config.position}'" if bias is not None else None
        reader = reader or self.operation.spec.needs_every_key
        if reader is not None or isinstance(visibility, BesideSinks):
            reader = reader or "a window, prefix or documents together with sink tokens"
            raise UnsupportedModelError(f"the cache dropped keys, and {reader} needs all of them: use a DynamicCache")
        group = self.config.num_attention_heads // self.config.kv_heads
        # (batch, kv_heads, kept) → (batch, heads, kept): query heads g·i … g·i + g − 1 read key-value head i.
        columns = places if places.shape[1] == 1 else places.repeat_interleave(group, 1)
        # Some caches count places on the processor, whatever device their keys are on.
        return Kept.of_columns(visibility, columns.to(visibility.key.order.device))

    def _remembered(
        self, cache: Cache, key: Tensor, value: Tensor, carried: Tensor | None, seen: int
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keys, values and what tokens carry, of all `seen` tokens, or of those that the cache kept."""
        width = key.shape[-1]
        # A cache layer has room for keys and values only: what tokens carry travels as further channels of the key.
        stored = key if carried is None else torch.cat([key, *_summands(carried, key.dtype)], -1)
        stored, value = cache.update(stored, value, self.layer_idx)
        stored, value = stored[:, :, :seen], value[:, :, :seen]  # a static cache hands out its whole buffer
        if carried is None:
            return stored, value, None
        summands = stored[..., width:].to(carried.dtype).unflatten(-1, (-1, carried.shape[-1]))
        return stored[..., :width], value, summands.sum(-2)


def _summands(numbers: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """Tensors of this dtype whose sum is `numbers`, in half precision three of them.

    One would lose digits that sums over a text need: three times 8 bits of bf16 are all 24 of fp32.
    """
    summands: list[Tensor] = []
    for _ in range(3 if dtype.itemsize < 4 else 1):
        summands.append(numbers.to(dtype))
        numbers = numbers - summands[-1].to(numbers.dtype)
    return summands
