"""Options that several commands share, as values: a parameter of such a type stands for all of its fields."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import wraps
from typing import Any, get_type_hints

from sinkscope.cli import options

AUTO = "auto"  # a corpus that follows from the model


@dataclass(frozen=True, kw_only=True)
class Reads:
    """What models read, and how much of it."""

    field: options.TextField = None
    corpus: options.CorpusName = AUTO
    split: options.SplitName = "validation"
    images: options.Images = None
    audio: options.Audio = None
    prompt: options.Prompt = None
    tokens: options.Tokens = 64
    samples: options.Samples = 100
    epsilon: options.Epsilon = 0.3
    bos: options.BosToken = "auto"


@dataclass(frozen=True, kw_only=True)
class Runs:
    """How models are loaded and run."""

    dtype: options.Precision = "auto"
    revision: options.Revision = None
    trust_remote_code: options.Trust = False
    device_map: options.DeviceMap = None
    batch_size: options.BatchSize = 8
    attn: options.Attn = None
    chat_template: options.ChatTemplate = None
    seed: options.Seed = 0


READS, RUNS = Reads(), Runs()
SHARED: tuple[type, ...] = (Reads, Runs)


def sharing(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of `Reads` and `Runs` where it has a parameter of that type.

    On the command line they stand in its place, in their order; the command is handed the value.
    """
    signature = inspect.signature(command, eval_str=True)
    own: list[inspect.Parameter] = []
    for param in signature.parameters.values():
        own += _fields(param.annotation) if param.annotation in SHARED else [param]
    shared = {name: param.annotation for name, param in signature.parameters.items() if param.annotation in SHARED}

    @wraps(command)
    def called(**given: Any) -> None:
        for name, kind in shared.items():
            given[name] = kind(**{each.name: given.pop(each.name) for each in fields(kind)})
        tokens = next((value.tokens for value in given.values() if isinstance(value, Reads)), READS.tokens)
        for name, value in given.items():
            if isinstance(value, Runs):
                given[name] = replace(value, batch_size=options.batch_of(value.batch_size, tokens))
        command(**given)

    keywords = [param.replace(kind=inspect.Parameter.KEYWORD_ONLY) for param in own]
    called.__signature__ = signature.replace(parameters=keywords)  # type: ignore[attr-defined]
    called.__annotations__ = {param.name: param.annotation for param in keywords}
    return called


def _fields(kind: type) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=hints[each.name])
        for each in fields(kind)
    ]
