"""An oracle for streaming that has no cache: each module's own forward on the inputs of the tokens that are kept.

Inside `oracle(model, cache, sinks, window)` every attention layer that streams gives, for a single new token, the last
row of what its own forward makes of the inputs of all kept tokens, told that they stand at positions 0 … n − 1. So the
model's outputs depend on what a layer is given and on nothing that a cache holds. Passes of several tokens are left as
they are, and their inputs noted.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from transformers import Cache

from sinkscope.caches.layers import SinkWindow
from sinkscope.hooks import attention_modules

ROTARY = ("rotary", "rope")
MASKS = ("attention_mask", "layer_past")
BY_PLACE = ("llama4_text",)  # scales queries by their place in the text, which the cache's length says
BIASES = ("alibi", "position_bias")


@contextmanager
def oracle(model: nn.Module, cache: Any, sinks: int, window: int) -> Iterator[dict[int, list[Any]]]:
    """Yields what each layer was given so far, by its index in the cache."""
    given: dict[int, list[dict[str, Tensor]]] = {}
    angles = Angles()
    updated: list[int] = []
    update = type(cache).update

    def noting(self: Any, keys: Tensor, values: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        updated.append(layer_idx)
        return update(self, keys, values, layer_idx, *args, **kwargs)

    def attending(module: nn.Module) -> Any:
        forward = module.forward
        signature = inspect.signature(forward)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            updated.clear()
            output = forward(*args, **kwargs)
            if not updated or not isinstance(cache.layers[updated[0]], SinkWindow):
                return output
            assert len(updated) == 1
            named = _named(signature, args, kwargs)
            history = given.setdefault(updated[0], [])
            queries = _first(output).shape[1]
            texts = {name: value for name, value in named.items() if _is_text(name, value, queries)}
            history.append(texts)
            if queries > 1:
                return output
            kept = {name: _kept([each[name] for each in history], sinks, window) for name in texts}
            length, seen = (
                next(iter(kept.values())).shape[1],
                sum(_first(list(each.values())).shape[1] for each in history),
            )
            again = _alone(named | kept, angles, length, seen, _model_of(model))
            row = _first(forward(**again))[:, -1:]
            return row if isinstance(output, Tensor) else (row, *output[1:])

        return wrapped

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(type(cache), "update", noting))
        for module in model.modules():
            if any(mark in type(module).__name__.lower() for mark in ROTARY):
                angles.follow(module, stack)
        for module in attention_modules(model):
            stack.enter_context(mock.patch.object(module, "forward", attending(module)))
        yield given


class Angles:
    """Which rotary module made which angles, so that it can be asked again for other positions."""

    def __init__(self) -> None:
        self.made: list[tuple[Any, Any]] = []

    def follow(self, module: nn.Module, stack: ExitStack) -> None:
        forward = module.forward

        def wrapped(x: Tensor, position_ids: Tensor, *args: Any, **kwargs: Any) -> Any:
            output = forward(x, position_ids, *args, **kwargs)
            self.made = [*self.made[-20:], (output, lambda positions: forward(x, positions, *args, **kwargs))]
            return output

        stack.enter_context(mock.patch.object(module, "forward", wrapped))

    def again(self, value: Any, positions: Tensor) -> Any:
        """The same angles for other positions; None where no rotary module made them."""
        for output, make in self.made:
            if output is value or (isinstance(value, tuple) and isinstance(output, tuple) and output[0] is value[0]):
                return make(positions)
        return None


class Longer:
    """Holds nothing, and says how many tokens were before."""

    def __init__(self, seen: int) -> None:
        self.seen = seen

    def get_seq_length(self, layer: int = 0) -> int:
        return self.seen

    def update(self, keys: Tensor, values: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
        return keys, values


def _alone(named: dict[str, Any], angles: Angles, length: int, seen: int, model: Any) -> dict[str, Any]:
    """The arguments of a pass over kept tokens alone: positions 0 … n − 1, no cache, no mask."""
    positions, found = torch.arange(length)[None], {}
    for name, value in named.items():
        if name == "attention_mask" and isinstance(value, Tensor) and value.is_floating_point():
            value = value.new_zeros((1, 1, length, length))  # some functions add one, whatever it is
        elif isinstance(value, Cache) and model.config.model_type in BY_PLACE:
            value = Longer(seen - length)
        elif isinstance(value, Cache) or name in MASKS:
            value = None
        elif name == "use_cache":
            value = False
        elif name == "position_ids" and value is not None:
            value = positions.expand(*value.shape[:-1], -1)
        elif name == "alibi" and value is not None:
            value = model.build_alibi_tensor(torch.ones(1, length), value.shape[0], value.dtype)
        elif (made := angles.again(value, positions)) is not None:
            value = made
        found[name] = value
    return found


def _model_of(model: nn.Module) -> Any:
    return getattr(model, "transformer", model)


def _named(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    bound = signature.bind_partial(*args, **kwargs).arguments
    return {name: value for name, value in bound.items() if name != "kwargs"} | bound.get("kwargs", {})


def _first(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output[0]


def _is_text(name: str, value: Any, queries: int) -> bool:
    """Whether an argument has a row for each token of the pass."""
    if not isinstance(value, Tensor) or name in BIASES or not value.is_floating_point():
        return False
    return value.ndim == 3 and value.shape[1] == queries


def _kept(inputs: list[Tensor], sinks: int, window: int) -> Tensor:
    whole = torch.cat(inputs, 1)
    if whole.shape[1] <= sinks + window:
        return whole
    return torch.cat([whole[:, :sinks], whole[:, whole.shape[1] - window :]], 1)
