"""Configuration of the lab language model."""

from __future__ import annotations

import difflib
from typing import Any, Literal, get_args, no_type_check

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from sinkscope.attention import AttentionSpec, name_of, resolve
from sinkscope.errors import InputError, unknown

Position = Literal["rotary"]

# What transformers itself writes into a saved configuration or passes while loading one, beside its declared fields.
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

    `attention` is an `AttentionSpec`, its dict, or its catalogue name; it is stored as a dict, so that a saved model
    needs no name to be understood. `intermediate_size` is the width of the SwiGLU. Unknown fields raise `InputError`
    with the nearest field's name (transformers' own configurations accept them silently).
    """

    model_type = "sinkscope_lab"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012  (the base class declares it so)

    vocab_size: int = 2048
    hidden_size: int = 128
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int | None = None
    intermediate_size: int = 336
    max_position_embeddings: int = 128
    attention: dict[str, Any] | str | AttentionSpec = "softmax"
    position: str = "rotary"
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5
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
        self.num_key_value_heads = self.num_key_value_heads or self.num_attention_heads
        self.attention = resolve(self.attention).to_dict()
        self._check_sizes()
        super().__post_init__(**kwargs)

    @property
    def spec(self) -> AttentionSpec:
        """The attention operation as a value."""
        return resolve(self.attention)

    @property
    def attention_name(self) -> str:
        """Its catalogue name, or `custom`."""
        return name_of(self.spec)

    @property
    def kv_heads(self) -> int:
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

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
            if not isinstance(value, int) or value < 1:
                raise InputError(f"LabConfig.{name} = {value!r}: expected an integer of at least 1")
        if self.hidden_size % self.num_attention_heads:
            raise InputError(
                f"LabConfig.hidden_size = {self.hidden_size} is not a multiple of num_attention_heads = "
                f"{self.num_attention_heads}"
            )
        if self.num_attention_heads % self.kv_heads:
            raise InputError(
                f"LabConfig.num_key_value_heads = {self.num_key_value_heads} does not divide num_attention_heads = "
                f"{self.num_attention_heads}"
            )
        if self.position not in get_args(Position):
            raise unknown("position", self.position, get_args(Position))
        if self.head_dim % 2:
            raise InputError(f"rotary positions need an even head width, got {self.head_dim}")
