"""How long a model goes on writing what it would have written with the full cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor, nn

from sinkscope.evaluate.arms import Arm
from sinkscope.evaluate.feeding import feeding
from sinkscope.evaluate.perplexity import Watch


def written(model: nn.Module, ids: Int[Tensor, "row position"], arm: Arm, tokens: int) -> Int[Tensor, "row new"]:
    """The most likely next token, `tokens` times, each read in turn: what greedy `generate` writes."""
    new: list[Tensor] = []
    with feeding(model, arm) as feed:
        coming = ids
        for _ in range(tokens):
            coming = feed.read(coming).argmax(-1, keepdim=True)
            new.append(coming.cpu())
    return torch.cat(new, 1)


def agreed(
    model: nn.Module, ids: Int[Tensor, "row position"], arms: Sequence[Arm], tokens: int, watch: Watch | None = None
) -> dict[str, Int[Tensor, " row"]]:
    """How many tokens each arm writes before the first that the first arm, the full cache, would not have written."""
    reference: Tensor | None = None
    found = {}
    for arm in arms:
        new = written(model, ids, arm, tokens)
        reference = new if reference is None else reference
        found[arm.name] = (new == reference).long().cumprod(1).sum(1)
        if watch is not None:
            watch()
    return found
