"""The families of transformers that take an operation, and the sizes of their attention layers."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel

from sinkscope.attention import Sizes
from sinkscope.hooks import KEY_NORM, head_count, head_width

FAMILIES: tuple[str, ...] = (
    *("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3_text"),
    *("gpt_oss", "olmo2", "phi3", "stablelm", "gpt2", "gpt_neox", "opt", "bert", "vit"),
)
"""Those whose every part is tested with operations attached: caches, padding, saving, training. Others that go through
transformers' attention interface are attached where the guard finds plain softmax to be the model itself."""

SINKS = "sinks"  # name of the attention layer's own sink logits (heads,), as in GPT-OSS


def sizes_of(model: PreTrainedModel, module: nn.Module, layer: int) -> Sizes:
    """The sizes of an operation for one attention layer."""
    # From the configuration, not from weights, whose shapes quantized and adapted maps change.
    heads = head_count(model, module)
    group = getattr(module, "num_key_value_groups", None)  # which may differ by layer, and is what functions read
    kv_heads = heads // group if isinstance(group, int) else getattr(model.config, "num_key_value_heads", None)
    return Sizes(
        heads=heads,
        kv_heads=kv_heads or heads,
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
