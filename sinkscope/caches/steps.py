"""One decoded token on the layers of a stack: its attention, and what a policy is shown of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sinkscope.caches.call import EvictionCall
from sinkscope.caches.layers.part import Part
from sinkscope.caches.layers.slots import KeptSets
from sinkscope.caches.layers.stack import Stack
from sinkscope.caches.masks import is_plain

GIVEN = ("query", "key", "value", "attention_mask")


@dataclass(eq=False)
class Step:
    """A layer between its `update` and the end of its attention call. `given`: what the attention function was given;
    `made`: whether the weights of this token are in the layer's part by now."""

    module: nn.Module
    layer: KeptSets
    part: Part
    number: int
    given: Mapping[str, Any]
    implementation: str | None
    made: bool = False

    def can_attend(self, reads_weights: bool) -> bool:
        """Whether it is a plain softmax in the precision that weights are computed in, and this is the faster way.

        So it is where the weights are asked for, and on a CPU, whose kernel is made for many queries.
        """
        query, key = self.given["query"], self.given["key"]
        return (
            (reads_weights or query.device.type == "cpu")
            and self.implementation in (None, "eager", "sdpa")
            and is_plain(self.module, dict(self.given))
            and query.dtype == key.dtype == self.part.weights.dtype
            and not (torch.is_grad_enabled() and query.requires_grad)
        )

    def attend(
        self,
        otherwise: Callable[..., Any],
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **more: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """What the attention function gives, by way of weights that are kept; `otherwise` where others changed more.

        Every slot is seen: none is empty, and their keys are older than the query.
        """
        found = query, key, value, attention_mask
        if any(one is not self.given.get(name) for name, one in zip(GIVEN, found, strict=True)):
            return otherwise(module, *found, **more)
        scaling = self.given.get("scaling")
        output = single_query_attention(
            query, key, value, query.shape[-1] ** -0.5 if scaling is None else scaling, self.part.weights[:, :, :, 0]
        )
        self.made = True
        eager = self.implementation in (None, "eager")  # which returns weights too
        return output, self.part.weights.flatten(1, 2).clone() if eager else None


def single_query_attention(
    query: Float[Tensor, "batch heads 1 dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key value_dim"],
    scaling: float,
    weights: Float[Tensor, "batch kv_heads group key"],
) -> Float[Tensor, "batch 1 heads value_dim"]:
    """softmax(q·k · scaling) · v for one query that sees every key; its weights are written to `weights`."""
    batch, heads, _, dim = query.shape
    packed = (query * scaling).view(batch, key.shape[1], -1, dim)
    torch.softmax(torch.matmul(key, packed.mT).mT, -1, out=weights)  # twice as fast as packed · keyᵀ on a CPU
    return torch.matmul(weights, value).view(batch, 1, heads, value.shape[3])


def call_of(stack: Stack, steps: list[Step], layers: int, ids: Tensor | None, weighs: bool) -> EvictionCall:
    """The call that a policy is shown for all layers of a stack, of so many `layers` that evict; `weighs`: with the
    weights of this token."""
    first, rows = steps[0], stack.rows
    query, scaling = torch.cat([step.given["query"] for step in steps]), first.given.get("scaling")
    return EvictionCall(
        query=query,
        key=rows["keys"],
        value=rows["values"],
        places=rows["places"],
        total=first.layer.seen,
        scaling=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        cache_heads=rows["places"].shape[1],
        budget=stack.budget,
        module=first.module,
        layer=first.number,
        layers=layers,
        ids=None if ids is None else ids.repeat(len(steps), 1),
        notes=stack.notes,
        rotation=stack.rotation,
        at=stack.hole,
        known=stack.weights if weighs else None,
        lowest=True,
    )
