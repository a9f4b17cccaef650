"""A change in other heads of each row of a batch: what random heads, drawn anew for each text, are run by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sinkscope.calibration.calls import Call
from sinkscope.calibration.editing import Head, HeadChange, editing_heads, heads_of, opening
from sinkscope.errors import InputError
from sinkscope.interventions import Intervention


@dataclass(frozen=True, eq=False)
class InRows(Intervention):
    """A `HeadChange` in other heads (layer, head) of each row; a pass has as many rows as there are sets of heads."""

    changes: HeadChange
    heads: Sequence[Sequence[Head]]

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        opened = opening(model, stack)
        used = tuple(sorted({head for row in self.heads for head in row}))
        change, masks = self.changes.change(opened), dict[nn.Module, Tensor]()
        heads = heads_of(model, opened, used)
        numbers = {opened.stream.layer(layer): layer for layer, _ in used}
        every = heads_of(model, opened, None)
        for module in heads:
            mask = torch.zeros(len(self.heads), len(every[module]), dtype=torch.bool)
            for row, own in enumerate(self.heads):
                mask[row, [head for layer, head in own if layer == numbers[module]]] = True
            masks[module] = mask

        def changed(call: Call) -> Tensor:
            mask = masks[call.module].to(call.output.device)
            if len(mask) != len(call.output):
                raise InputError(f"heads of {len(mask)} rows, and a pass of {len(call.output)} rows")
            return torch.where(mask[..., None, None], change(call), call.output)

        editing_heads(opened, stack, heads, changed)

    def control(self, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> InRows:
        raise InputError("no control of a control: ask the calibration in its own heads for one")

    def describe(self) -> dict[str, Any]:
        return {
            **self.changes.describe(),
            "name": "InRows",
            "heads": [[list(head) for head in row] for row in self.heads],
        }
