"""Attention functions by name: transformers' own, and any function as `module:function`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from sinkscope.attention.oracle.styles import STYLES, Style, Unmasked
from sinkscope.errors import InputError, unknown
from sinkscope.registry import imported

EAGER = "transformers.models.llama.modeling_llama:eager_attention_forward"  # which most models have a copy of
FLASH = "flash_attention"


@dataclass(frozen=True)
class AttentionFunction:
    """An attention function, how it is called, and the precision in which it is compared unless another is named."""

    function: Callable[..., Any]
    style: Style
    dtype: torch.dtype = torch.float32


def backend(name: str) -> AttentionFunction:
    """The attention function of a name.

    `eager` (that of Llama, of which most models have a copy), any name that transformers' attention interface knows
    (`sdpa`, `flex_attention`, `flash_attention_2` …; `flash` is the newest flash attention that is installed), or
    `module:function`, with modules in the working directory found first. Raises `InputError` for an unknown name, for
    what is not installed here, and for a module that cannot be imported.
    """
    if ":" in name:
        return AttentionFunction(_imported(name), STYLES["plain"])
    if name == "eager":
        return AttentionFunction(_imported(EAGER), STYLES["transformers"])
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    known = sorted(each for each in ALL_ATTENTION_FUNCTIONS if not each.startswith("paged|"))
    if name == "flash":
        name = _newest([each for each in known if each.startswith(FLASH)])
    if name not in known:
        raise unknown("backend", name, ["eager", "flash", *known, "module:function"])
    function = ALL_ATTENTION_FUNCTIONS[name]
    if not name.startswith(FLASH):
        return AttentionFunction(function, STYLES["transformers"])
    if not _installed(name):
        raise InputError(f"{name} is not installed here")
    return AttentionFunction(function, Unmasked(name), torch.bfloat16)


def _newest(names: list[str]) -> str:
    newest = next((name for name in sorted(names, reverse=True) if _installed(name)), None)
    if newest is None:
        raise InputError(f"no flash attention is installed here: none of {', '.join(names)}")
    return newest


def _installed(name: str) -> bool:
    from transformers import utils

    number = name.removeprefix(FLASH + "_")
    check = getattr(utils, f"is_flash_attn_{number}_available", None)
    return check is None or bool(check())


def _imported(name: str) -> Callable[..., Any]:
    function = imported(name)
    if not callable(function):
        raise InputError(f"'{name}' is not a function, but of type {type(function).__name__}")
    return function
