"""`sinkscope` as a model of lm-eval: any model, with an operation attached and through a cache policy. Extra `eval`."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from sinkscope.caches import POLICIES, Protect, StreamingCache, evicting, policy_of
from sinkscope.errors import InputError, unknown
from sinkscope.interventions import load
from sinkscope.model import attach as attach_operation
from sinkscope.model import load_tokenizer
from sinkscope.sinks import First
from sinkscope.trials.arm import Arm, cached
from sinkscope.trials.harness import cached_class, load_hflm

NAME = "sinkscope"
STREAM = "stream"  # in the place of a policy: `StreamingCache`


def register() -> None:
    """Make lm-eval know the model `sinkscope`, once. Raises `InputError` where lm-eval is not installed.

    lm-eval has no entry points for models, so that somebody must: `sinkscope lm-eval` does, and passes on what follows.
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
    """The cache of `--model_args cache=NAME`: a policy's name with `budget` (keys per head, or a share) and `when`,
    beside whose choice the first `protect` and last `recent` tokens stay; or "stream" with `sinks` and `window`.

    Raises `InputError` for an unknown name and for a budget that is none.
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
