"""The families of transformers that take an operation, and the sizes of their attention layers."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel

from sinkscope.attention import Sizes
from sinkscope.errors import UnsupportedModelError
from sinkscope.hooks import KEY_NORM, head_count, head_width, is_encoder_decoder

FAMILIES: tuple[str, ...] = (
    *("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3_text"),
    *("gpt_oss", "olmo2", "phi3", "stablelm", "gpt2", "gpt_neox", "opt", "bert", "vit"),
)
"""Those whose every part is tested with operations attached: logits, caches, padding, saving."""

REASONS = {
    "t5": "adds a learned position bias to its scores, and its decoder attends across to an encoder",
    "whisper": "listens with an encoder that its decoder attends across to",
    "gemma3": "holds a text and a vision model: attach to its language_model",
}

SINKS = "sinks"  # name of the attention layer's own sink logits (heads,), as in GPT-OSS


def check_family(model: PreTrainedModel) -> None:
    """Raises `UnsupportedModelError` for a family that is not in the table, with those that are."""
    kind = str(model.config.model_type)
    if kind in FAMILIES:
        return
    reason = REASONS.get(kind)
    if reason is None and is_encoder_decoder(model):
        reason = "has a decoder that attends across to an encoder, for which no operation is defined"
    raise UnsupportedModelError(
        f"no operation can be attached to family '{kind}': supported are {', '.join(FAMILIES)}"
        + (f" ('{kind}' {reason})" if reason else "")
    )


def sizes_of(model: PreTrainedModel, module: nn.Module, layer: int) -> Sizes:
    """The sizes of an operation for one attention layer."""
    # From the configuration, not from weights, whose shapes quantized and adapted maps change.
    heads = head_count(model, module)
    return Sizes(
        heads=heads,
        kv_heads=getattr(model.config, "num_key_value_heads", None) or heads,
        head_dim=head_width(module),
        hidden_size=model.config.hidden_size,
        layer=layer,
    )


def normalizes(module: nn.Module) -> bool:
    """Whether a layer normalizes its queries and keys itself."""
    return any(name in KEY_NORM for name, _ in module.named_children())


def sink_of(module: nn.Module) -> nn.Parameter | None:
    """The learned sink logits (heads,) of a host's layer."""
    sinks = getattr(module, SINKS, None)
    return sinks if isinstance(sinks, nn.Parameter) else None
