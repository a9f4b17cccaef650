"""What arms predict after a context, one given token at a time; goes with the studies, for which trials stand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import Cache

from sinkscope.caches.memory import held_bytes
from sinkscope.hooks import evaluating
from sinkscope.trials.feeding import Feed


@dataclass(frozen=True)
class CacheArm:
    """A name, and how to open an empty cache for a model."""

    name: str
    open: Callable[[nn.Module], AbstractContextManager[Cache]]


@dataclass(frozen=True, eq=False)
class Scored:
    """`nll`: −log p of the token, `kl`: KL(first arm ‖ arm), in nats; `same`: whether both find the same token most
    likely; `held`: bytes of the cache after the context, and at the end."""

    nll: Float[Tensor, "row scored"]
    kl: Float[Tensor, "row scored"]
    same: Bool[Tensor, "row scored"]
    held: tuple[int, int]


def scored(
    model: nn.Module, ids: Int[Tensor, "row position"], arms: Sequence[CacheArm], *, context: int
) -> dict[str, Scored]:
    """What every arm predicts after the context, compared with the first of them."""
    reference: list[Tensor] = []
    results = {}
    for arm in arms:
        steps, held = [], []
        with evaluating(model), torch.no_grad(), arm.open(model) as cache:
            feed = Feed(model, cache)
            for step, place in enumerate(range(context, ids.shape[1])):
                logs = feed.read(ids[:, feed.seen : place]).log_softmax(-1).cpu()
                held.append(held_bytes(feed.cache))
                if arm is arms[0]:
                    reference.append(logs)
                p, q = reference[step].double(), logs.double()
                nll = logs.gather(1, ids[:, place : place + 1].cpu())[:, 0].double().neg()
                steps.append((nll, (p.exp() * (p - q)).nan_to_num(0.0).sum(-1), p.argmax(-1) == q.argmax(-1)))
        nll, kl, same = (torch.stack(part, 1) for part in zip(*steps, strict=True))
        results[arm.name] = Scored(nll, kl, same, (held[0], held[-1]))
    return results
