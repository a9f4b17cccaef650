"""Which modules of a model are attention layers, and which of its blocks they stand in: read off its structure."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

from torch import nn

from sinkscope.errors import UnsupportedModelError
from sinkscope.probes.structure.places import Layer

CROSS = ("cross", "encdecattention", "enc_dec_attention", "encoder_attn")
MODALITIES = {"vision": ("vis", "image"), "audio": ("audio",)}


@dataclass(frozen=True, eq=False)
class Block:
    """An element of the module list that an attention layer stands in: where the residual stream is read."""

    module: nn.Module
    stack: str


def attention_layers(model: nn.Module) -> dict[nn.Module, Layer]:
    """The modules whose forward asks transformers' attention interface for its function, in the model's order.

    Raises `UnsupportedModelError` where there is none.
    """
    found = {module: path for path, module in model.named_modules() if dispatches(module)}
    if not found:
        raise no_attention(model)
    return {module: label(model, module, path) for module, path in found.items()}


def no_attention(model: nn.Module) -> UnsupportedModelError:
    """The error for a model in which nothing dispatches."""
    return UnsupportedModelError(
        f"family '{family(model)}' has no attention layer that dispatches through transformers' AttentionInterface, so "
        "nothing can be read inside its attention; what works: families that do (Llama, Mistral, Qwen, Gemma, GPT-2, "
        "GPT-NeoX, OPT, BERT, T5 …), and observers of weights alone for those that return their attention maps "
        "(attn_implementation='eager', output_attentions=True)"
    )


def label(model: nn.Module, module: nn.Module, path: str) -> Layer:
    """The layer's name, index and stack."""
    index = getattr(module, "layer_idx", None)
    return Layer(path, index if isinstance(index, int) else -1, _stack(model, module, path))


def blocks(model: nn.Module) -> list[Block]:
    """All elements of the outermost module lists that contain an attention layer, in the model's order."""
    lists: dict[str, str] = {}
    modules = dict(model.named_modules())
    for layer in attention_layers(model).values():
        parts = layer.name.split(".")
        prefixes = (".".join(parts[: end + 1]) for end in range(len(parts)))
        outermost = next((prefix for prefix in prefixes if isinstance(modules[prefix], nn.ModuleList)), None)
        if outermost is not None and layer.stack != "cross":
            lists.setdefault(outermost, layer.stack)
    return [Block(module, stack) for path, stack in lists.items() for module in modules[path].children()]


def dispatches(module: nn.Module) -> bool:
    """True when the module's own forward, or the one it extends with `super()`, looks up an attention function."""
    for cls in type(module).__mro__:
        forward = vars(cls).get("forward")
        if forward is None:
            continue
        names = set(getattr(getattr(inspect.unwrap(forward), "__code__", None), "co_names", ()))
        if "ALL_ATTENTION_FUNCTIONS" in names or {"get_interface", "_attn_implementation"} <= names:
            return True
        if "super" not in names:
            return False
    return False


def family(model: nn.Module) -> str:
    """What transformers calls the model's family, else the name of its class."""
    return str(getattr(getattr(model, "config", None), "model_type", None) or type(model).__name__)


def _stack(model: nn.Module, module: nn.Module, path: str) -> str:
    parts = path.lower().split(".")
    if any(mark in part for part in parts for mark in CROSS):
        return "cross"
    for modality, marks in MODALITIES.items():
        if any(part.startswith(marks) for part in parts):
            return modality
    config = getattr(model, "config", None)
    if getattr(config, "is_encoder_decoder", False):
        return "encoder" if "encoder" in parts else "decoder"
    if getattr(model, "main_input_name", None) == "pixel_values" and not hasattr(config, "text_config"):
        return "vision"
    return "decoder" if getattr(module, "is_causal", _takes_cache(module)) else "encoder"


def _takes_cache(module: nn.Module) -> bool:
    """Whether the layer can go on with keys of earlier passes, as only causal ones do."""
    return "past_key_values" in inspect.signature(module.forward).parameters
