"""What no mask had hidden when a softmax was taken: read from its scores, whatever code took it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

SOFTMAXES = {functional.softmax, torch.softmax, torch.Tensor.softmax}
HIDDEN = 32  # scores below the dtype's minimum over this are masks: families add it, and divide by √(head width) after
REPLACED = (-1e4, -9984.0)  # what OpenAI GPT puts in the place of hidden scores, the second as bfloat16 has it

Seen = Callable[[Float[Tensor, "*rows key"], Float[Tensor, "*rows key"]], object]


def unmasked(scores: Float[Tensor, "*rows key"], dtype: torch.dtype | None = None) -> Bool[Tensor, "*rows key"]:
    """True where no mask has hidden a score that enters a softmax; `dtype`: the model's, where scores may be wider.

    A mask leaves −inf, the lowest number of a dtype (over √(head width), where it is added before scores are scaled),
    or exactly −10,000; a score that is low by itself stays visible, also where its weight underflows to 0.
    """
    visible = scores > torch.finfo(dtype or scores.dtype).min / HIDDEN
    for value in REPLACED:
        visible &= scores != value
    return visible


def following_softmaxes(model: nn.Module, seen: Seen, stack: ExitStack) -> None:
    """Show the scores and the weights of each softmax of the model's passes to `seen`, until `stack` closes.

    Several may follow a model at once: the modes of a pass end in the reverse of the order in which they began.
    """
    watching = _Watching(seen)
    begin = model.register_forward_pre_hook(lambda module, args: watching.begin())
    end = model.register_forward_hook(lambda module, args, output: watching.end(), always_call=True, prepend=True)
    for undo in (watching.end, end.remove, begin.remove):
        stack.callback(undo)


class _Watching(TorchFunctionMode):
    """The mode of one follower, on during a pass."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self._seen, self._on = seen, False

    def begin(self) -> None:
        if not self._on:
            self._on = True
            self.__enter__()

    def end(self) -> None:
        """Also of a pass that ended in an error, and of one that never began."""
        if self._on:
            self._on = False
            self.__exit__(None, None, None)

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in SOFTMAXES:
            scores = args[0] if args else (kwargs or {})["input"]
            self._seen(scores.detach(), result.detach())
        return result
