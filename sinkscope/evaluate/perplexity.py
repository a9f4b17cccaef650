"""How well a text is predicted through a cache: read the context at once, then one given token at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from sinkscope.caches.memory import held_bytes
from sinkscope.evaluate.arms import FULL, Arm
from sinkscope.evaluate.feeding import checked_ids, feeding

Watch = Callable[[], None]
"""Called after each token that was scored."""


@dataclass(frozen=True, eq=False)
class Scored:
    """What a model predicted behind a context, each token given before the next is asked for.

    `nll`: −log p of the token that stood there, in nats; `kl`: KL(full ‖ arm) of the prediction, in nats; `same`:
    whether both find the same token most likely. `held`: bytes that the cache held behind the context, and at the end.
    """

    nll: Float[Tensor, "row scored"]
    kl: Float[Tensor, "row scored"]
    same: Bool[Tensor, "row scored"]
    held: tuple[int, int]


def stream_nll(
    model: nn.Module, ids: Int[Tensor, "row position"], arm: Arm, *, context: int = 1, watch: Watch | None = None
) -> Float[Tensor, "row scored"]:
    """−log p, in nats, of each token behind the context, float64.

    The first `context` tokens are read in one pass, as `generate` does; then each pass reads one. Raises `InputError`
    where no token is left behind the context.
    """
    ids = checked_ids(ids, context)
    steps = []
    with feeding(model, arm) as feed:
        for place in range(context, ids.shape[1]):
            logs = feed.read(ids[:, feed.seen : place]).log_softmax(-1).cpu()
            steps.append(logs.gather(1, ids[:, place : place + 1].cpu())[:, 0].double().neg())
            if watch is not None:
                watch()
    return torch.stack(steps, 1)


def scored(
    model: nn.Module,
    ids: Int[Tensor, "row position"],
    arms: Sequence[Arm],
    *,
    context: int,
    watch: Watch | None = None,
) -> dict[str, Scored]:
    """What every arm predicts behind the context, beside what the first of them does: the full cache.

    As `stream_nll`, but the logits of the first arm are held: rows × scored × vocabulary × 4 bytes. So give few rows
    at a time. Raises `InputError` as it does, and where the first arm is not the full cache.
    """
    ids = checked_ids(ids, context)
    if not arms or arms[0].name != FULL:
        raise ValueError("the first arm is what the others stand beside: the full cache")
    reference: list[Tensor] = []
    found = {}
    for arm in arms:
        steps: list[tuple[Tensor, Tensor, Tensor]] = []
        held: list[int] = []
        for step, logs in enumerate(_predictions(model, ids, arm, context, held)):
            if arm is arms[0]:
                reference.append(logs)
            steps.append(_beside(logs, reference[step], ids[:, context + step].cpu()))
            if watch is not None:
                watch()
        nll, kl, same = (torch.stack(part, 1) for part in zip(*steps, strict=True))
        found[arm.name] = Scored(nll, kl, same, (held[0], held[-1]))
    return found


def _predictions(model: nn.Module, ids: Tensor, arm: Arm, context: int, held: list[int]) -> Iterator[Tensor]:
    """log p of every token, (row, vocabulary), at each scored position; `held`: the cache, first and last."""
    with feeding(model, arm) as feed:
        for place in range(context, ids.shape[1]):
            logs = feed.read(ids[:, feed.seen : place]).log_softmax(-1).cpu()
            if place in (context, ids.shape[1] - 1):
                held.append(held_bytes(feed.cache))
            yield logs


def _beside(logs: Tensor, reference: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    nll = logs.gather(1, tokens[:, None])[:, 0].double().neg()
    kl = (reference.double().exp() * (reference.double() - logs.double())).nan_to_num(0.0).sum(-1)
    return nll, kl, logs.argmax(-1) == reference.argmax(-1)
