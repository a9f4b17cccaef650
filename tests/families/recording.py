"""What attention functions and softmaxes are given while a model runs. No code of the library is used here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AttentionInterface

OPENAI = -1e4  # what OpenAI GPT puts in the place of scores that it hides; others add the lowest number of their dtype


@contextmanager
def recording(keep: Callable[[nn.Module, Tensor | None, dict[str, Any]], None]) -> Iterator[None]:
    """Give `keep` each call of an attention function that transformers' interface hands out.

    With the function's weights and its arguments by name: the mask as `attention_mask`, whatever else it was given.
    """
    original = AttentionInterface.get_interface
    names = "query", "key", "value", "attention_mask"

    def watched(self: Any, name: str | None, default: Callable[..., Any]) -> Callable[..., Any]:
        function = original(self, name, default)

        def run(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            output, weights = function(module, *args, **kwargs)
            keep(module, weights, dict(zip(names, args, strict=False)) | kwargs)
            return output, weights

        return run

    AttentionInterface.get_interface = watched
    try:
        yield
    finally:
        AttentionInterface.get_interface = original


def visible_by(mask: Any) -> Bool[Tensor, "_ _ query key"] | None:
    """True where a mask of an eager attention function lets a query see a key; None where it hides nothing."""
    if not isinstance(mask, Tensor) or mask.ndim != 4:
        return None
    return mask.clone() if mask.dtype == torch.bool else mask > -9999


class Softmaxes(TorchDispatchMode):
    """Every softmax that is computed meanwhile: its weights, and which of its scores no mask had hidden."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operator(*args, **(kwargs or {}))
        if operator is torch.ops.aten._softmax.default:
            scores: Tensor = args[0]
            visible = (scores > torch.finfo(scores.dtype).min / 32) & (scores != OPENAI)
            self.seen.append((result, visible))
        return result

    def visible(self, weights: Tensor) -> Bool[Tensor, "batch heads query key"] | None:
        """What was visible to the softmax whose weights these are; None where none was taken."""
        for result, visible in self.seen:
            if result.numel() == weights.numel() and torch.equal(result.reshape(weights.shape), weights):
                return visible.reshape(weights.shape)
        return None
