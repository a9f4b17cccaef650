"""A host's own learned sink, beside the slots of an operation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from sinkscope.attention import AttentionSpec, Context, LogitSlot, Operation, Sizes, SlotTerms
from sinkscope.model.attached.families import SINKS, sink_of


class HostSink(nn.Module):
    """A slot whose logits are the parameter that the host's attention layer has for its sink, and that stays its own.

    Source: OpenAI 2025 (2508.10925), GPT-OSS.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = (layer,)  # in a tuple: as a submodule the layer would be part of itself

    def __deepcopy__(self, memo: dict[int, Any]) -> HostSink:
        """With a copied layer, its sink; a copy of the operation alone (PEFT) keeps the layer that it is in."""
        return HostSink(memo.get(id(self.layer[0]), self.layer[0]))

    def forward(self, context: Context) -> SlotTerms:
        return SlotTerms(logit=getattr(self.layer[0], SINKS))


def with_sink(spec: AttentionSpec, module: nn.Module) -> AttentionSpec:
    """The operation with the host's own sink as its last slot."""
    return spec if sink_of(module) is None else replace(spec, slots=(*spec.slots, LogitSlot()))


def build(spec: AttentionSpec, sizes: Sizes, module: nn.Module) -> Operation:
    """The operation of a host's attention layer, in which the host's own sink stays in force."""
    operation = Operation(with_sink(spec, module), sizes)
    if sink_of(module) is not None:
        operation.slot_modules[-1] = HostSink(module)
    return operation


def carries_sink(operation: Operation) -> bool:
    """Whether the host's own sink is among the slots."""
    return any(isinstance(slot, HostSink) for slot in operation.slot_modules)
