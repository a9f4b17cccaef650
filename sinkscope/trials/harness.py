"""lm-eval tasks through a cache, so that what a cache drops changes the score. Needs the extra `eval`.

lm-eval scores a continuation in one dense pass without a cache, on which no cache has an influence.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from sinkscope.errors import InputError
from sinkscope.trials.arm import Arm, Texts
from sinkscope.trials.feeding import Feed, feeding

Request = tuple[Any, list[int], list[int]]
"""What was asked in words, the context's tokens, the continuation's."""


def cached_lm(model: nn.Module, tokenizer: Any, arm: Arm, **options: Any) -> Any:
    """An lm-eval model that reads the context through a cache of `arm`, which drops what it drops, and goes on with it.

        lm_eval.simple_evaluate(cached_lm(model, tokenizer, arm), tasks=["…"])

    Log-likelihoods: the context in one pass, then the continuation, a given token at a time, at its true positions; one
    row at a time, so that no padding is needed. Generation: lm-eval's own, with the arm's cache. `options` are those of
    lm-eval's `HFLM`, which it is. What a task puts at the context's end, such as its question, is seen before anything
    is dropped. Raises `InputError` where lm-eval is not installed.
    """
    return cached_class()(model, tokenizer, arm, **options)


def summed(model: nn.Module, arm: Arm, context: list[int], continuation: list[int]) -> tuple[float, bool]:
    """log p of the continuation behind the context, in nats, and whether it is what greedy decoding writes."""
    total, greedy, coming = 0.0, True, context
    with feeding(model, arm, torch.tensor([context])) as feed:
        for token in continuation:
            logs = _read(feed, coming)
            total += float(logs[token])
            greedy &= int(logs.argmax()) == token
            coming = [token]
    return total, greedy


def cut(context: list[int], continuation: list[int], longest: int) -> list[int]:
    """The context without what the model has no positions for, dropped from its left, as lm-eval does it.

    Raises `InputError` where there is no context, no continuation, or too long a one.
    """
    if not context or not 0 < len(continuation) <= longest:
        raise InputError(
            f"a context of {len(context)} tokens and a continuation of {len(continuation)}: both need one at least, "
            f"and the model reads {longest}"
        )
    return (context + continuation)[-longest - 1 : -len(continuation)]


def _read(feed: Feed, ids: list[int]) -> Tensor:
    return feed.read(torch.tensor([ids]))[0].double().log_softmax(-1)


def load_hflm() -> Any:
    """lm-eval's model of transformers. Raises `InputError` where lm-eval is not installed."""
    try:
        from lm_eval.models.huggingface import HFLM
    except ImportError as error:
        raise InputError(f"lm-eval cannot be imported ({error}): pip install 'sinkscope[eval]'") from error
    return HFLM


@cache
def cached_class() -> type:
    """The class of `cached_lm`. Raises `InputError` where lm-eval is not installed."""
    base = load_hflm()
    from tqdm import tqdm

    class CachedLM(base):  # type: ignore[misc, valid-type]
        def __init__(self, model: nn.Module, tokenizer: Any, arm: Arm, **options: Any) -> None:
            super().__init__(pretrained=model, tokenizer=tokenizer, **options)
            self.arm = arm

        def _loglikelihood_tokens(
            self, requests: Sequence[Request], disable_tqdm: bool = False, override_bs: int | None = None
        ) -> list[tuple[float, bool]]:
            answers = []
            for asked, context, continuation in tqdm(requests, disable=disable_tqdm, desc=f"scored, {self.arm.name}"):
                kept = cut(context, continuation, self.max_length)
                answer = summed(self.model, self.arm, kept, continuation)
                if asked is not None:
                    self.cache_hook.add_partial("loglikelihood", asked, answer)
                answers.append(answer)
            return answers

        def _model_generate(self, context: Tensor, max_length: int, stop: list[str], **options: Any) -> Tensor:
            with torch.no_grad(), self.arm.open(self.model, Texts.of_ids(context)) as opened:
                written: Tensor = super()._model_generate(context, max_length, stop, past_key_values=opened, **options)
            return written

    return CachedLM
