"""How a transformers model is read and changed: attention calls, passes, residual stream, linear maps, modules, inputs.

Observers, interventions, attached operations and caches all stand on this room, and it knows no statistic. To write
something new that reads or changes a model:

    with ExitStack() as stack:
        opened = OpenStream(model, stack)                # the stack that is changed, and its passes
        opened.edit(3, lambda hidden: hidden * 0.5)      # the residual stream behind the third block
        stack.enter_context(editing(MyEditor()))         # attention calls (Editor), or watching(MyWatcher())
        model(**batch)
"""

from sinkscope.hooks.dispatch import ARGUMENTS, Editor, Invocation, Watcher, editing, watching
from sinkscope.hooks.hosted import IMPLEMENTATION, PLACE, Hosted, hosted, visibility_of
from sinkscope.hooks.inputs import (
    batches,
    check_weights,
    checked_inputs,
    device_of,
    evaluating,
    in_batches,
    part,
    samples_of,
)
from sinkscope.hooks.modules import (
    MODALITIES,
    Block,
    Depth,
    ExpertLayer,
    Layer,
    Place,
    PositionTable,
    attention_layers,
    block_lists,
    blocks,
    dispatches,
    family,
    has_attention,
    is_encoder_decoder,
    label,
    no_attention,
    own_stack,
    position_embedding,
    sink_tokens,
    unembedding,
    unwrapped,
    vision_prefix,
)
from sinkscope.hooks.own_attention import Computed, following
from sinkscope.hooks.own_layers import attention_modules, own_attention
from sinkscope.hooks.passes import Axis, Edit, Forward, Pass, Passes, Samples, axes, cache_of, check_order
from sinkscope.hooks.projections import (
    Keys,
    Projection,
    attention_projections,
    head_count,
    head_width,
    is_experts,
    key_projection,
    output_projection,
    projection,
    projections,
)
from sinkscope.hooks.stream import OpenStream, Stream, checked, read_blocks, read_stream, row_length, width_of

__all__ = [
    "ARGUMENTS",
    "IMPLEMENTATION",
    "MODALITIES",
    "PLACE",
    "Axis",
    "Block",
    "Computed",
    "Depth",
    "Edit",
    "Editor",
    "ExpertLayer",
    "Forward",
    "Hosted",
    "Invocation",
    "Keys",
    "Layer",
    "OpenStream",
    "Pass",
    "Passes",
    "Place",
    "PositionTable",
    "Projection",
    "Samples",
    "Stream",
    "Watcher",
    "attention_layers",
    "attention_modules",
    "attention_projections",
    "axes",
    "batches",
    "block_lists",
    "blocks",
    "cache_of",
    "check_order",
    "check_weights",
    "checked",
    "checked_inputs",
    "device_of",
    "dispatches",
    "editing",
    "evaluating",
    "family",
    "following",
    "has_attention",
    "head_count",
    "head_width",
    "hosted",
    "in_batches",
    "is_encoder_decoder",
    "is_experts",
    "key_projection",
    "label",
    "no_attention",
    "output_projection",
    "own_attention",
    "own_stack",
    "part",
    "position_embedding",
    "projection",
    "projections",
    "read_blocks",
    "read_stream",
    "row_length",
    "samples_of",
    "sink_tokens",
    "unembedding",
    "unwrapped",
    "visibility_of",
    "vision_prefix",
    "watching",
    "width_of",
]
