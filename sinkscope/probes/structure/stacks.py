"""Stacks and blocks of models whose attention layers can not be recognised: from configuration and module lists."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_MASKED_LM_MAPPING_NAMES

from sinkscope.probes.structure.layers import Block

TIME_FIRST = {"xlnet", "fsmt"}  # their blocks pass (position, batch, width) on, which no shape tells apart
COUNTS = ("num_hidden_layers", "encoder_layers", "decoder_layers", "num_encoder_layers", "num_decoder_layers")


def own_stack(model: PreTrainedModel) -> str:
    """What the one stack of a model is called: vision, or by what transformers has heads for, decoder or encoder."""
    if model.main_input_name == "pixel_values":
        return "vision"
    kind = model.config.model_type
    writes = kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and kind not in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return "decoder" if writes or bool(getattr(model.config, "is_decoder", False)) else "encoder"


def block_lists(model: PreTrainedModel) -> dict[str, dict[str, nn.Module]]:
    """The blocks of each stack by their path: the one outermost module list that is as long as the stack is deep.

    A stack has none where several lists are (XLM keeps attention and feed-forward apart), or where blocks pass on the
    residual stream with positions first.
    """
    if model.config.model_type in TIME_FIRST:
        return {}
    depths = {getattr(model.config, name, None) for name in COUNTS}
    found: dict[str, list[str]] = {}
    modules = dict(model.named_modules())
    lists = [path for path, module in modules.items() if isinstance(module, nn.ModuleList) and len(module) in depths]
    for path in lists:
        if not any(path.startswith(f"{other}.") for other in lists):
            found.setdefault(_stack_of(model, path), []).append(path)
    return {
        stack: {f"{paths[0]}.{name}": block for name, block in modules[paths[0]].named_children()}
        for stack, paths in found.items()
        if len(paths) == 1
    }


def residual_blocks(model: PreTrainedModel) -> list[Block]:
    """All blocks whose residual stream can be read, stack after stack."""
    return [Block(block, stack) for stack, blocks in block_lists(model).items() for block in blocks.values()]


def _stack_of(model: PreTrainedModel, path: str) -> str:
    if not model.config.is_encoder_decoder:
        return own_stack(model)
    return "encoder" if "encoder" in path.split(".") else "decoder"
