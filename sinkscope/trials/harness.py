"""lm-eval's tasks through a cache, and `sinkscope` as a model of lm-eval. Needs the extra `eval`.

lm-eval scores a continuation in one dense pass without a cache, on which no cache has an influence.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from sinkscope.caches import POLICIES, Protect, StreamingCache, evicting, policy_of
from sinkscope.errors import InputError, unknown
from sinkscope.interventions import load
from sinkscope.model import attach as attach_operation
from sinkscope.model import load_tokenizer
from sinkscope.sinks import First
from sinkscope.trials.arm import Arm, Texts, cached
from sinkscope.trials.feeding import feeding

NAME = "sinkscope"
STREAM = "stream"  # in the place of a policy: `StreamingCache`

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
    """log p of the continuation after the context, in nats, and whether it is what greedy decoding writes."""
    total, greedy, coming = 0.0, True, context
    with feeding(model, arm, torch.tensor([context])) as feed:
        for token in continuation:
            logs = feed.read(torch.tensor([coming]))[0].double().log_softmax(-1)
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
    # One token more than the model reads: the last of the continuation is only predicted.
    return (context + continuation)[-longest - 1 : -len(continuation)]


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
            for request_key, context, continuation in tqdm(
                requests, disable=disable_tqdm, desc=f"scored, {self.arm.name}"
            ):
                kept = cut(context, continuation, self.max_length)
                answer = summed(self.model, self.arm, kept, continuation)
                if request_key is not None:
                    self.cache_hook.add_partial("loglikelihood", request_key, answer)
                answers.append(answer)
            return answers

        def _model_generate(self, context: Tensor, max_length: int, stop: list[str], **options: Any) -> Tensor:
            with torch.no_grad(), self.arm.open(self.model, Texts.of_ids(context)) as opened:
                written: Tensor = super()._model_generate(context, max_length, stop, past_key_values=opened, **options)
            return written

    return CachedLM


def register() -> None:
    """Make lm-eval know the model `sinkscope`, once. Raises `InputError` where lm-eval is not installed.

    lm-eval has no entry points for models, so a program must do it: `sinkscope lm-eval` does, and passes on the rest.
    """
    made = _registered_class()
    from lm_eval.api.registry import get_model, register_model

    try:
        get_model(NAME)
    except (KeyError, ValueError):
        register_model(NAME)(made)


def arm_of(
    name: str,
    budget: float | str = 0.25,
    when: str = "prefill",
    sinks: int = 4,
    window: int = 1020,
    protect: int = 0,
    recent: int = 0,
) -> Arm:
    """The cache of `--model_args cache=NAME` as an arm.

    Args:
        name: A name of `caches.POLICIES`, or "stream" for a `StreamingCache`.
        budget: For a policy: keys per head (an integer), or a share of the context (with a decimal point).
        when: For a policy: "prefill" drops keys once, "always" at every token.
        sinks: For a stream: first tokens that stay.
        window: For a stream: newest tokens that stay.
        protect: For a policy: first tokens that stay in addition.
        recent: For a policy: newest tokens that stay in addition.

    Raises `InputError` for an unknown name and for a budget out of range.
    """
    if name == STREAM:
        return cached(f"{STREAM} {sinks}+{window}", lambda model: StreamingCache(model, sinks=sinks, window=window))
    if name not in POLICIES:
        raise unknown("cache", name, [STREAM, *POLICIES])
    try:
        number = float(budget)
    except ValueError as error:
        raise InputError(f"budget = {budget!r}: expected a number of keys, or a share such as 0.25") from error
    keys: int | float = number if "." in str(budget) else int(number)  # 1.0 is all of them, 1 is one
    policy = policy_of(name)
    kept = Protect(policy, First(protect) if protect else None, recent) if protect or recent else policy
    return Arm(f"{name}@{budget}", lambda model, texts: evicting(model, kept, keys, when))  # type: ignore[arg-type]


@cache
def _registered_class() -> type:
    """`pretrained` (with `revision`, `dtype`, `device`, `trust_remote_code`), `attach`: a name of the catalog, `cache`:
    see `arm_of`; everything else is lm-eval's own `HFLM`'s."""
    dense, through_cache = load_hflm(), cached_class()

    def made(
        pretrained: str,
        attach: str | None = None,
        cache: str | None = None,
        revision: str | None = None,
        dtype: str = "auto",
        device: str | None = None,
        trust_remote_code: bool = False,
        **options: Any,
    ) -> Any:
        names = ("budget", "when", "sinks", "window", "protect", "recent")
        of_cache = {name: options.pop(name) for name in names if name in options}
        if cache is None and of_cache:
            raise InputError(f"{', '.join(of_cache)} go with a cache: --model_args cache=NAME")
        through = None if cache is None else arm_of(cache, **of_cache)
        if device is not None and device.startswith("cuda") and not torch.cuda.is_available():
            device = "cpu"  # lm-eval asks for a GPU where nothing is said, and its own models fall back likewise
        model = load(pretrained, revision=revision, dtype=dtype, device=device, trust_remote_code=trust_remote_code)
        tokenizer = load_tokenizer(pretrained, revision=revision, trust_remote_code=trust_remote_code)
        if attach is not None:
            attach_operation(model, attach)
        if through is None:
            return dense(pretrained=model, tokenizer=tokenizer, **options)
        return through_cache(model, tokenizer, through, **options)

    class Sinkscope(dense):  # type: ignore[misc, valid-type]
        @classmethod
        def create_from_arg_string(cls, arg_string: str, additional_config: Any = None) -> Any:
            from lm_eval.utils import simple_parse_args_string

            return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

        @classmethod
        def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: Any = None) -> Any:
            options = {name: value for name, value in (additional_config or {}).items() if value is not None}
            return made(**{**arg_dict, **options})

    return Sinkscope
