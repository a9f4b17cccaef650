"""lm-eval tasks through a cache, so that what a cache drops changes the score. Needs the extra `eval`.

    from sinkscope.evaluate.harness import CachedLM
    lm_eval.simple_evaluate(CachedLM(model, tokenizer, arm), tasks=["…"])

lm-eval scores a continuation in one dense pass without a cache, on which no cache has an influence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sinkscope.errors import InputError
from sinkscope.evaluate.arms import Arm
from sinkscope.evaluate.feeding import Feed, feeding

try:
    from lm_eval.models.huggingface import HFLM
except ImportError as error:
    raise InputError(f"lm-eval cannot be imported ({error}): pip install 'sinkscope[eval]'") from error

Request = tuple[Any, list[int], list[int]]
"""What was asked in words, the context's tokens, the continuation's."""


class CachedLM(HFLM):
    """An lm-eval model that reads the context through a cache of `arm`, which drops what it drops, and goes on with it.

    Log-likelihoods: the context in one pass, then the continuation, a given token at a time, at its true positions; a
    row at a time, so that no padding is needed. Generation: lm-eval's own, with the arm's cache. Other options are
    those of lm-eval's `HFLM`. What a task puts at the context's end, such as its question, is seen before anything is
    dropped.
    """

    def __init__(self, model: nn.Module, tokenizer: Any, arm: Arm, **options: Any) -> None:
        super().__init__(pretrained=model, tokenizer=tokenizer, **options)
        self.arm = arm

    def _loglikelihood_tokens(
        self, requests: Sequence[Request], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[tuple[float, bool]]:
        """The log-likelihood of each continuation, in nats, and whether it is what greedy decoding writes."""
        from tqdm import tqdm

        bar = tqdm(requests, disable=disable_tqdm or self.rank != 0, desc=f"log-likelihoods, {self.arm.name}")
        found = []
        for asked, context, continuation in bar:
            answer = self._score(*self._cut(context, continuation))
            if asked is not None:
                self.cache_hook.add_partial("loglikelihood", asked, answer)
            found.append(answer)
        return found

    def _cut(self, context: list[int], continuation: list[int]) -> tuple[list[int], list[int]]:
        """Drop from the left of the context what the model has no positions for, as lm-eval does."""
        if not context or not continuation or len(continuation) > self.max_length:
            raise InputError(
                f"a context of {len(context)} tokens and a continuation of {len(continuation)}: both need one at "
                f"least, and the model reads {self.max_length}"
            )
        return (context + continuation)[-self.max_length - 1 : -len(continuation)], continuation

    def _score(self, context: list[int], continuation: list[int]) -> tuple[float, bool]:
        with feeding(self.model, self.arm) as feed:
            total, greedy = 0.0, True
            coming = context
            for token in continuation:
                logs = _read(feed, coming)
                total += float(logs[token])
                greedy &= int(logs.argmax()) == token
                coming = [token]
        return total, greedy

    def _model_generate(self, context: Tensor, max_length: int, stop: list[str], **options: Any) -> Tensor:
        with torch.no_grad(), self.arm.open(self.model) as cache:
            written: Tensor = super()._model_generate(context, max_length, stop, past_key_values=cache, **options)
        return written


def _read(feed: Feed, ids: list[int]) -> Tensor:
    return feed.read(torch.tensor([ids]))[0].double().log_softmax(-1)
