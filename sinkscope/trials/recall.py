"""Recall: whether a model still answers what stood in the context, once its cache has dropped keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from sinkscope.hooks import unwrapped
from sinkscope.trials.arm import Arm
from sinkscope.trials.feeding import Prompt, feeding
from sinkscope.trials.needles import Asked


@dataclass(frozen=True, eq=False)
class Recalled:
    """Which answers were right. `unseen`: the questions came after the cache had dropped what it drops, (row,
    question); `seen`: the first question already stood at the context's end, and was asked once more, as a choice,
    (row,), None where a question has several tokens."""

    unseen: Bool[Tensor, "row question"]
    seen: Bool[Tensor, " row"] | None


def recalled(model: nn.Module, asked: Asked, arms: Sequence[Arm], start: int = 0) -> Iterator[tuple[str, Recalled]]:
    """Each arm's name and answers: the context in one pass, then a key at a time, each followed by its true value.

    An answer is right where the value is more likely than every other token. What a cache is shown before it drops keys
    decides what it keeps, so a question that it has seen counts apart. That one is asked twice in a row, and a model
    that looks up what followed the key before may find the key: so its answer is right where the value is the likeliest
    of the values that are asked for in this text, of which about one in four is right by chance. `start`: the number of
    the first text, for arms that differ between texts.
    """
    model = unwrapped(model)
    with_question = None if asked.keys.ndim > 2 else torch.cat([asked.context, asked.keys[:, :1]], 1)
    prompt = Prompt.of(model, asked.context, arms)
    second = None if with_question is None else Prompt.of(model, with_question, arms)
    for arm in arms:
        unseen = _unseen(model, asked, arm, start, prompt)
        seen = None if with_question is None else _seen(model, asked, with_question, arm, start, second)
        yield arm.name, Recalled(unseen, seen)


def _unseen(model: nn.Module, asked: Asked, arm: Arm, start: int, prompt: Prompt | None) -> Tensor:
    right = []
    with feeding(model, arm, asked.context, start) as feed:
        feed.read_after(prompt, arm, asked.context[:, feed.seen :])
        for key, answer in zip(asked.keys.split(1, 1), asked.answers.split(1, 1), strict=True):
            right.append(feed.read(key.flatten(1)).argmax(-1).cpu() == answer[:, 0])
            feed.read(answer)
    return torch.stack(right, 1)


def _seen(model: nn.Module, asked: Asked, ids: Tensor, arm: Arm, start: int, prompt: Prompt | None) -> Tensor:
    with feeding(model, arm, ids, start) as feed:
        feed.read_after(prompt, arm, ids[:, feed.seen :])
        among = feed.read(asked.keys[:, :1]).cpu().gather(1, asked.answers)
        others = asked.answers != asked.answers[:, :1]  # two keys may have one value
        return ((among < among[:, :1]) | ~others).all(1)
