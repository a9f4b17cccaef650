"""Configuration of the lab language model."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from math import isfinite
from typing import Any, Literal, get_args, no_type_check

import torch
from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from sinkscope.attention import (
    AttentionSpec,
    Document,
    DotProduct,
    Exclusive,
    Mask,
    OwnValueGate,
    Sizes,
    Visibility,
    name_of,
    resolve,
)
from sinkscope.attention.masks import leaves
from sinkscope.errors import InputError, unknown
from sinkscope.model.positions import Rope, check_even_width
from sinkscope.model.visibility import bidirectional, causal, longest_prefix


def per_layer(attention: object, layers: int) -> list[AttentionSpec]:
    """One operation for each layer: a single one, or those of a list, repeated cyclically.

    [local, local, full] of seven layers is local, local, full, local, local, full, local. Raises `InputError` for a
    list that is empty or longer than there are layers, and for what is no operation.
    """
    if not isinstance(attention, list | tuple):
        return [resolve(attention)] * layers
    if not 1 <= len(attention) <= layers:
        raise InputError(
            f"LabConfig.attention: a list of {len(attention)} operations for {layers} layers; give one for each layer, "
            "or fewer, which repeat"
        )
    pattern = [resolve(one) for one in attention]
    return [pattern[layer % len(pattern)] for layer in range(layers)]


def as_data(operations: Sequence[AttentionSpec]) -> dict[str, Any] | list[dict[str, Any]]:
    """Plain data to store: one dict where all layers have the same operation, else one for each layer."""
    first = operations[0]
    if all(operation == first for operation in operations):
        return first.to_dict()
    return [operation.to_dict() for operation in operations]


@cache
def check_builds(operation: AttentionSpec, sizes: Sizes) -> None:
    """Raises `InputError` for an operation that does not fit a layer of these sizes; allocates nothing."""
    with torch.device("meta"):
        operation.build(
            heads=sizes.heads, kv_heads=sizes.kv_heads, head_dim=sizes.head_dim, hidden_size=sizes.hidden_size
        )


def as_applied(operation: AttentionSpec, is_causal: bool) -> AttentionSpec:
    """The operation under the mask that it has in a causal or a bidirectional model (`visibility`)."""
    mask = causal(operation.mask) if is_causal else bidirectional(operation.mask)
    return operation if mask == operation.mask else replace(operation, mask=mask)


CHOICES = {
    "norm": ("rmsnorm", "layernorm", "gated_rmsnorm", "preaffine_rmsnorm", "none"),
    "norm_placement": ("pre", "post", "sandwich", "outlier_protected"),
    "ffn": ("swiglu", "geglu", "reglu", "swish", "gelu", "relu", "relu_squared", "linear", "none"),
    "head_combination": ("concat", "add"),
    "weight_reparam": ("none", "sigma"),
}
FLAGS = ("ffn_match_parameters", "restart_positions", "is_causal", "tie_word_embeddings", "use_cache", "value_residual")
LOOKED_AT = 16  # tokens; a mask that lets a query see later tokens does so within these
PROTECTED_GAIN = 0.2  # He et al. 2024's for twelve layers; of order 1 / sqrt(layers)

POSITIVE = {"residual_gain": PROTECTED_GAIN, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "rope_fraction": 1.0}


def default_gain(norm_placement: str) -> float:
    """The default β of residual branches: 0.2 in the outlier-protected block, else 1."""
    return PROTECTED_GAIN if norm_placement == "outlier_protected" else 1.0


def unlike_llama(config: PreTrainedConfig) -> str | None:
    """The first field by which a block of this configuration differs from a Llama's; None if none does."""
    same = {
        "norm": config.norm == "rmsnorm",
        "norm_placement": config.norm_placement == "pre",
        "residual_gain": config.residual_gain == 1,
        "ffn": config.ffn == "swiglu",
        "head_combination": config.head_combination == "concat" or config.num_attention_heads == 1,
        "weight_reparam": config.weight_reparam == "none",
        "attention_every": not config.is_hybrid,
        "kv_layers": not config.shares_kv,
        "logit_softcap": config.logit_softcap is None,
        "value_residual": not config.value_residual,
    }
    return next((field for field, is_same in same.items() if not is_same), None)


def check_blocks(config: PreTrainedConfig) -> None:
    """Raises `InputError` for the first of the block's fields whose value has no meaning."""
    for field, choices in CHOICES.items():
        if (chosen := getattr(config, field)) not in choices:
            raise unknown(field, str(chosen), choices)
    for field in FLAGS:
        if not isinstance(value := getattr(config, field), bool):
            raise InputError(f"LabConfig.{field} = {value!r}: expected true or false")
    for field, usual in POSITIVE.items():
        value = getattr(config, field)
        if isinstance(value, bool) or not isinstance(value, int | float) or not (isfinite(value) and value > 0):
            raise InputError(f"LabConfig.{field} = {value!r}: expected a positive number, such as {usual}")
    cap = config.logit_softcap
    if cap is not None and (type(cap) not in (int, float) or not (isfinite(cap) and cap > 0)):
        raise InputError(f"LabConfig.logit_softcap = {cap!r}: expected a positive number, such as 15, or nothing")
    _check_count("norm_rank", config.norm_rank, 1)
    _check_count("sink_tokens", config.sink_tokens, 0)
    _check_tokens(config)
    _check_hybrid(config)
    _check_sharing(config)
    _check_value_residual(config)


def _check_tokens(config: PreTrainedConfig) -> None:
    for field in ("bos_token_id", "eos_token_id", "pad_token_id"):
        value = getattr(config, field)
        several = value if isinstance(value, list) and field == "eos_token_id" else [value]
        for token in several:
            if token is not None and (type(token) is not int or not 0 <= token < config.vocab_size):
                raise InputError(
                    f"LabConfig.{field} = {value!r}: expected a token, 0 … {config.vocab_size - 1}, or nothing"
                )


def _check_count(field: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"LabConfig.{field} = {value!r}: expected an integer of at least {least}")


def _check_hybrid(config: PreTrainedConfig) -> None:
    interval, offset = config.attention_every, config.attention_offset
    for field, least in (
        ("attention_every", 1),
        ("attention_offset", 0),
        ("mamba_d_state", 1),
        ("mamba_d_conv", 2),
        ("mamba_expand", 1),
    ):
        _check_count(field, getattr(config, field), least)
    if offset >= interval:
        raise InputError(
            f"LabConfig.attention_offset = {offset}: one layer in {interval} attends, so expected 0 … {interval - 1}"
        )
    if not any(config.attends):
        raise InputError(
            f"LabConfig.attention_offset = {offset}: none of {config.num_hidden_layers} layers attends; "
            f"choose at most {config.num_hidden_layers - 1}"
        )
    documents = (isinstance(leaf, Document) for spec in config.specs for leaf in leaves(spec.mask))
    if config.is_hybrid and any(documents):
        raise InputError(
            "LabConfig.attention_every: a Mamba layer carries its state across the borders of documents, which "
            "contradicts the attention's document mask; use attention_every = 1 or another mask"
        )


def _check_sharing(config: PreTrainedConfig) -> None:
    for field, least in (("kv_iterations", 0), ("kv_gradient_iterations", 1)):
        _check_count(field, getattr(config, field), least)
    if config.kv_layers is None:
        return
    layers, suppliers = config.num_hidden_layers, config.kv_layers
    if not isinstance(suppliers, list) or len(suppliers) != layers or any(type(one) is not int for one in suppliers):
        raise InputError(f"LabConfig.kv_layers = {suppliers!r}: expected {layers} layer numbers, one for each layer")
    if wrong := [one for one in suppliers if not 0 <= one < layers]:
        raise InputError(f"LabConfig.kv_layers: there is no layer {wrong[0]}; choose from 0 … {layers - 1}")
    if not config.shares_kv:
        return
    if config.is_hybrid:
        raise InputError("LabConfig.kv_layers: a Mamba layer has no keys and values; use attention_every = 1")
    if any(spec.acts_before for spec in config.specs):
        raise InputError(
            f"LabConfig.kv_layers: '{config.attention_name}' changes queries, keys or values with what its own "
            "layer learns before they are cached, so no other layer can read them"
        )
    upward = [spec for layer, spec in enumerate(config.specs) if suppliers[layer] > layer]
    if upward and _looks_ahead(config):
        raise InputError(
            "LabConfig.kv_layers: a layer that reads from a later one needs a causal model; with this mask, or with "
            "is_causal = False, queries see later tokens"
        )
    # A token's own value is then of the run before, so what a token becomes would depend on the number of runs.
    if own := [piece for spec in upward for piece in spec.output if isinstance(piece, Exclusive | OwnValueGate)]:
        raise InputError(
            f"LabConfig.kv_layers: '{own[0].kind}' reads each token's own value, which a layer that reads from a later "
            "one does not see"
        )


def _check_value_residual(config: PreTrainedConfig) -> None:
    if config.value_residual and (config.is_hybrid or config.shares_kv):
        raise InputError(
            "LabConfig.value_residual: every layer mixes its values with the first layer's, so all must attend and "
            "have values of their own: use attention_every = 1 and no kv_layers"
        )


def _looks_ahead(config: PreTrainedConfig) -> bool:
    """Whether a layer's mask shows any of the first tokens to an earlier one."""
    # One document, so that no document mask hides what the rest of a mask shows.
    documents = torch.zeros(1, LOOKED_AT, dtype=torch.long)

    def looks(mask: Mask) -> bool:
        visible = Visibility.of(mask, LOOKED_AT, LOOKED_AT, documents=documents).dense()
        return bool(visible.triu(1).any())

    return any(looks(spec.mask) for spec in config.specs)


Position = Literal["none", "learned", "sinusoidal", "relative_t5", "relative_paper", "rotary", "alibi"]
BIASES = ("relative_t5", "relative_paper", "alibi")

# What transformers itself writes into a saved configuration or passes while loading one, besides its declared fields.
_WRITTEN_BY_TRANSFORMERS = {
    "model_type",
    "name_or_path",
    "attn_implementation",
    "experts_implementation",
    "output_attentions",
    "num_labels",
    "torch_dtype",
    "_commit_hash",
    "_attn_implementation_internal",
    "_experts_implementation_internal",
    "_attn_implementation_autoset",
    "use_bidirectional_attention",
}


@no_type_check  # checkers of annotations wrap a dataclass by its fields, but transformers passes further ones
@strict
class LabConfig(PreTrainedConfig):
    """Sizes and choices of a `LabForCausalLM`.

    `attention` is an `AttentionSpec`, its dict, or its catalog name, for all layers; or a list of these, where layer l
    has number l, and a list shorter than the model repeats. It is stored as a dict, or as one for each layer where they
    differ, so that a saved model needs no name to be understood. In a causal model every mask is joined with causality:
    no query sees a later token, whatever the mask says, except those of a prefix. Unknown fields raise `InputError`
    with the nearest field's name (transformers' own configurations accept them silently).

    Blocks: `norm` rmsnorm | layernorm | gated_rmsnorm (of rank `norm_rank`) | preaffine_rmsnorm | none;
    `norm_placement` pre | post | sandwich | outlier_protected (`lab.PLACEMENTS`); `residual_gain`, β before each
    residual branch (None: 0.2 in the outlier-protected block, else 1); `ffn` swiglu | geglu | reglu | swish | gelu |
    relu | relu_squared | linear | none of inner width `intermediate_size`, with `ffn_match_parameters` 3/2 of it where
    nothing gates; `head_combination` concat | add; `weight_reparam` none | sigma. With `value_residual` a layer l > 0
    takes (1 − λ) v + λ v₀ for its values, v₀ those of the first layer at the same token and λ learned from ½ (Zhou et
    al. 2024, 2410.17897). Layer l attends where l mod `attention_every` = `attention_offset`; the others are Mamba
    layers of `mamba_*` sizes. `kv_layers` names for each layer the one whose keys and values it reads (`shared_kv`);
    where that is a later layer, training takes `kv_iterations` runs without and `kv_gradient_iterations` with gradient.

    `position` is one of `Position`; `rope_theta`, `rope_fraction` (of a head's channels) and `rope_scale`
    (transformers' rope dict: linear, llama3 or yarn) belong to `rotary`, and `max_position_embeddings` is the length of
    the table of `learned`. With `restart_positions` the positions of packed documents each start at 0. A model with
    `is_causal=False` is bidirectional: the mask's windows and documents stay, its triangle goes, and its loss compares
    each position with its own label. `logit_softcap` c bounds logits, c · tanh(z / c) (Gemma Team 2024). `sink_tokens`
    learned tokens precede every sequence.
    """

    model_type = "sinkscope_lab"
    keys_to_ignore_at_inference = ["past_key_values", "cache"]  # noqa: RUF012  (the base class declares it so)

    vocab_size: int = 2048
    hidden_size: int = 128
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int | None = None
    intermediate_size: int = 336
    max_position_embeddings: int = 128
    attention: dict[str, Any] | str | AttentionSpec | list[Any] | tuple[Any, ...] = "softmax"
    position: str = "rotary"
    rope_theta: float = 10000.0
    rope_fraction: float = 1.0
    rope_scale: dict[str, Any] | None = None
    restart_positions: bool = False
    is_causal: bool = True
    sink_tokens: int = 0
    rms_norm_eps: float = 1e-5
    norm: str = "rmsnorm"
    norm_rank: int = 16
    norm_placement: str = "pre"
    residual_gain: float | None = None
    ffn: str = "swiglu"
    ffn_match_parameters: bool = False
    head_combination: str = "concat"
    weight_reparam: str = "none"
    attention_every: int = 1
    attention_offset: int = 0
    mamba_d_state: int = 16
    mamba_d_conv: int = 4
    mamba_expand: int = 2
    kv_layers: list[int] | None = None
    kv_iterations: int = 7
    kv_gradient_iterations: int = 2
    value_residual: bool = False
    logit_softcap: float | None = None
    tie_word_embeddings: bool = False
    use_cache: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        fields = [name for name in self.__dataclass_fields__ if not name.startswith("_")]
        for name in kwargs:
            if name not in _WRITTEN_BY_TRANSFORMERS:
                near = difflib.get_close_matches(name, fields, n=1)
                hint = f": did you mean '{near[0]}'?" if near else ""
                raise InputError(f"unknown field '{name}' of LabConfig{hint}")
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        self._check_sizes()
        self.attention = as_data(per_layer(self.attention, self.num_hidden_layers))
        if isinstance(self.kv_layers, tuple):
            self.kv_layers = list(self.kv_layers)
        if self.residual_gain is None:
            self.residual_gain = default_gain(self.norm_placement)
        check_blocks(self)
        self._check_positions()
        self.attention = as_data([one.within(self.max_position_embeddings) for one in self._operations()])
        for spec in self.specs:
            check_builds(spec, Sizes(self.num_attention_heads, self.kv_heads, self.head_dim, self.hidden_size))
        if not self.shares_kv:  # another spelling of the same model
            self.kv_layers = None
        super().__post_init__(**kwargs)

    @property
    def specs(self) -> list[AttentionSpec]:
        """The attention operation of each layer as a value, under the mask that it has in this model.

        In a causal model the mask is joined with causality, in a bidirectional one it lets queries look ahead.
        """
        return [as_applied(operation, self.is_causal) for operation in self._operations()]

    @property
    def spec(self) -> AttentionSpec:
        """The attention operation of all layers. Raises `InputError` where they differ: then there are `specs`."""
        first, *others = self.specs
        if any(other != first for other in others):
            raise InputError("this model's layers have different attention operations: read config.specs, one for each")
        return first

    @property
    def attention_name(self) -> str:
        """Its catalog name, or `custom`; where layers differ their names, in the order in which they first come."""
        return " + ".join(dict.fromkeys(name_of(operation) for operation in self._operations()))

    def _operations(self) -> list[AttentionSpec]:
        """The operation of each layer, before masks are adapted."""
        return per_layer(self.attention, self.num_hidden_layers)

    @property
    def rope(self) -> Rope:
        """Rotary positions as a value. Raises `InputError` for channels that form no pairs, and unknown scalings."""
        return Rope(
            head_dim=self.head_dim,
            length=self.max_position_embeddings,
            theta=float(self.rope_theta),
            fraction=self.rope_fraction,
            scaling=self.rope_scale,
        )

    @property
    def kv_heads(self) -> int:
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def attends(self) -> list[bool]:
        """For each layer whether it is an attention layer; the others are Mamba layers."""
        return [index % self.attention_every == self.attention_offset for index in range(self.num_hidden_layers)]

    @property
    def is_hybrid(self) -> bool:
        """Whether there is a layer without attention."""
        return not all(self.attends)

    @property
    def suppliers(self) -> list[int]:
        """For each layer the one whose keys and values it reads."""
        return list(range(self.num_hidden_layers)) if self.kv_layers is None else self.kv_layers

    @property
    def shares_kv(self) -> bool:
        """Whether a layer reads another layer's keys and values."""
        return self.suppliers != list(range(self.num_hidden_layers))

    @property
    def supplies(self) -> list[bool]:
        """For each layer whether it makes keys and values, which it does if some layer reads them."""
        return [index in self.suppliers for index in range(self.num_hidden_layers)]

    @property
    def kv_sharing_modes(self) -> list[str] | None:
        """For transformers' caches, which layers keep nothing because they read what another one keeps."""
        return ["keep" if supplies else "reuse" for supplies in self.supplies] if self.shares_kv else None

    @property
    def layer_types(self) -> list[str] | None:
        """What transformers' caches have to keep for each layer; None where that is keys and values for all."""
        if not self.is_hybrid:
            return None
        return ["full_attention" if attends else "linear_attention" for attends in self.attends]

    def _check_sizes(self) -> None:
        for name in (
            "vocab_size",
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "intermediate_size",
            "max_position_embeddings",
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"LabConfig.{name} = {value!r}: expected an integer of at least 1")
        if self.hidden_size % self.num_attention_heads:
            heads, near = self.num_attention_heads, round(self.hidden_size / self.num_attention_heads)
            raise InputError(
                f"LabConfig.hidden_size = {self.hidden_size} is not a multiple of num_attention_heads = {heads}; the "
                f"nearest that is: {heads * max(1, near)}"
            )
        if self.num_attention_heads % self.kv_heads:
            heads = self.num_attention_heads
            raise InputError(
                f"LabConfig.num_key_value_heads = {self.num_key_value_heads} does not divide num_attention_heads = "
                f"{heads}; choose from {', '.join(str(count) for count in range(1, heads + 1) if heads % count == 0)}"
            )

    def _check_positions(self) -> None:
        if self.position not in get_args(Position):
            raise unknown("position", str(self.position), get_args(Position))
        if not self.is_causal and any(
            slot.kind == "suffix" for layer_spec in self._operations() for slot in layer_spec.slots
        ):
            raise InputError(
                "StableMask gives mass to positions that a query cannot see, and a bidirectional model has none"
            )
        specs = self.specs
        if self.position == "rotary":
            self.rope.frequencies()
        elif self.rope_scale is not None or self.rope_fraction != 1:
            raise InputError(f"rope_scale and rope_fraction belong to rotary positions, not to '{self.position}'")
        if self.position == "sinusoidal":
            check_even_width(self.hidden_size)
        if self.position in BIASES and any(not isinstance(spec.similarity, DotProduct) for spec in specs):
            raise InputError(f"'{self.position}' positions add to logits, and a feature map has none")
        longest = max(longest_prefix(spec.mask) for spec in specs)
        if longest > self.max_position_embeddings:
            raise InputError(
                f"a prefix of {longest} tokens is longer than the context, max_position_embeddings = "
                f"{self.max_position_embeddings}"
            )
