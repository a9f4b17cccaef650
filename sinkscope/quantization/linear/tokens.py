"""Which rows of a map's input a quantizer leaves alone, and the inputs of all maps over some texts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import (
    Passes,
    Stream,
    batches,
    checked_inputs,
    evaluating,
    family,
    unwrapped,
    without_cache,
    without_logits,
)
from sinkscope.interventions import Intervention
from sinkscope.quantization.linear.maps import LinearMap
from sinkscope.quantization.linear.uses import Uses
from sinkscope.quantization.protected import Protect, ProtectedInPass, resolved_for_passes

if TYPE_CHECKING:
    from sinkscope.quantization.linear.experts import Routing

Read = Callable[[str, Float[Tensor, "row in"], Int[Tensor, "row"] | None], object]


class LeftAlone:
    """The rows of a map's input that are part of no range and stay unchanged: protected tokens, and padding.

    Follows the passes of `model` until `stack` closes. Protected tokens belong to the stack that generates text
    (`Stream.of`); in the inputs that come from an encoder or an image, only padding is left alone.
    """

    def __init__(self, model: nn.Module, protect: Protect | str | None, stack: ExitStack) -> None:
        self._protected = None if protect is None else ProtectedInPass(model, protect, stack)
        self._axis = Stream.of(model).axis
        self._passes = Passes(model)
        self._passes.attach(stack, first=True)
        self.uses = Uses(self._passes, stack)

    def rows(self, one: LinearMap, x: Tensor, routing: Routing | None) -> Bool[Tensor, "..."] | None:
        """True for the rows of x to leave alone, broadcasting to x; None if there are none.

        Raises `UnsupportedModelError` if there are some but their rows are unknown.
        """
        left = self._columns(one, x, routing)
        if left is None or not bool(left.any()):
            return None
        left = left.to(x.device)
        if routing is not None:
            # The first map of experts gets the tokens, the second a row for each pair of a token and its expert.
            flat = left.flatten()
            return (flat[routing.token] if routing.paired else flat)[:, None]
        if not one.routed and x.ndim > 2 and x.shape[:2] == left.shape:
            return left.view(*left.shape, *[1] * (x.ndim - 2))
        if not one.routed and x.ndim == 2 and len(x) == left.numel():
            return left.view(-1, 1)
        if not one.routed and x.ndim == 4 and x.shape[1] == 1 and x[:, 0].shape[:2] == left.shape:
            return left[:, None, :, None]  # latents, as one head
        raise UnsupportedModelError(
            f"family '{family(self._passes.model)}': '{one.path}' gets {tuple(x.shape)} in a pass over {len(left)} "
            f"rows of {left.shape[1]} tokens (routed to an expert, or split otherwise), so its protected and padded "
            "tokens are unknown: name it in skip, or protect nothing and give rows of one length"
        )

    def texts(self, one: LinearMap, x: Tensor, routing: Routing | None) -> Int[Tensor, " first"] | None:
        """The row of the batch to which each entry of x's first axis belongs; None if that axis is the batch.

        Raises `UnsupportedModelError` if that is unknown.
        """
        batch = self._passes.now.forward.batch
        if routing is not None:
            # Tokens are flattened row by row: token t of n, in a batch of b, belongs to row ⌊t · b / n⌋.
            token = routing.token if routing.paired else torch.arange(routing.tokens, device=x.device)
            return token * batch // routing.tokens
        text = one.axis in ("tokens", "memory")
        if not one.routed and x.ndim > 2 and (len(x) == batch or not text):  # one range per image or recording
            return None
        if batch == 1 or (not one.routed and text and len(x) % batch == 0):
            return torch.arange(len(x), device=x.device) * batch // len(x)
        raise UnsupportedModelError(
            f"family '{family(self._passes.model)}': '{one.path}' gets {tuple(x.shape)} in a pass over {batch} rows "
            "(routed to an expert, or split otherwise), so the row of each token is unknown: give one row at a time, "
            "name it in skip, or share one range among all rows (per_call=True)"
        )

    def _columns(self, one: LinearMap, x: Tensor, routing: Routing | None) -> Bool[Tensor, "batch position"] | None:
        forward = self._passes.now.forward
        if self._protected is not None and one.axis == self._axis:
            return self._protected.now | ~self._protected.real
        if one.axis not in forward.real and one.axis not in forward.elsewhere:
            return None
        by_row = x[:, 0] if x.ndim == 4 and x.shape[1] == 1 else x
        if x.ndim == 2:
            # The batch axis is lost; `at` reads only the shape and the device of what it gets.
            count = len(x) if routing is None else routing.tokens
            by_row = x.new_empty(forward.batch, count // forward.batch, 1)
        real = forward.at(one.axis, None, by_row)
        return ~real.expand(forward.batch, -1)


def read_inputs(
    model: nn.Module,
    inputs: Any,
    maps: Collection[LinearMap],
    read: Read,
    protect: Protect | str | None = None,
    under: Intervention | None = None,
    batch_size: int = 8,
) -> None:
    """Pass the inputs of each map to `read(path, rows, experts)`, without protected tokens and padding.

    Args:
        model: Any transformers model.
        inputs: As `measure` takes them.
        maps: Whose inputs are read.
        read: Called with the path of a map, its input rows, and the expert of each row (None without stacked experts).
        protect: Tokens to leave out.
        under: An intervention that is active meanwhile.
        batch_size: Rows per forward pass.
    """
    model = unwrapped(model)
    checked, samples = checked_inputs(model, inputs, batch_size)
    protect = resolved_for_passes(protect, model, checked)
    with torch.compiler.set_stance("force_eager"), evaluating(model), torch.no_grad(), ExitStack() as stack:
        alone = LeftAlone(model, protect, stack)
        if under is not None:
            under.attach(model, stack)  # before the readers, which then see what it changed
        for one in maps:
            one.edit_input(_reading(one, alone, read), stack)
            alone.uses.require(one)
        # The unembedding reads every token where it is one of the maps, or may be changed.
        inside = under is None and all(one.block is not None for one in maps)
        for batch in batches(model, checked, samples, batch_size):
            model(**batch | (without_logits(model, batch) if inside else without_cache(model)))


def _reading(one: LinearMap, alone: LeftAlone, read: Read) -> Any:
    def edit(x: Tensor, routing: Routing | None) -> Tensor:
        alone.uses.used(one)
        left, rows = alone.rows(one, x, routing), x.reshape(-1, x.shape[-1])
        kept = torch.ones(len(rows), dtype=torch.bool, device=x.device)
        if left is not None:
            kept = ~left.expand(*x.shape[:-1], 1).reshape(-1)
        if routing is None:
            read(one.path, rows[kept], None)
        elif routing.paired:
            read(one.path, rows[kept], routing.expert[kept])
        else:
            # x has a row per token, which is read once for each of its experts.
            chosen = kept[routing.token]
            read(one.path, rows[routing.token][chosen], routing.expert[chosen])
        return x

    return edit


def check_read(maps: Iterable[str], seen: Iterable[str]) -> None:
    """Raises `InputError` for a map that no token of the calibration inputs reached."""
    if missing := sorted(set(maps) - set(seen)):
        raise InputError(
            f"no token of the calibration inputs reached '{missing[0]}' (one of {len(missing)}): give more of them"
        )
