"""The spared tokens of the pass under way: what every method that quantizes inside a model asks."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from torch.nn import functional

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import Pass, Passes, Samples, arguments, cache_of, check_order, unwrapped
from sinkscope.model.columns import UNKNOWN, Columns, every_column, own_columns
from sinkscope.quantization.spared.spared import Spared

Kind = TypeVar("Kind")


class SparedInPass:
    """Which tokens of each pass are spared, for as long as `stack` is open: whole passes, chunks, cached decoding.

        spared = SparedInPass(model, self.spared, stack)
        ... inside a hook: fake_quantize(x, grid, spared.exempt(x))

    `spared` None spares nothing. The columns are those of the changed stack (`Stream.of`), so ask for tensors of its
    blocks alone. Raises `InputError` at once for a choice that whole inputs must tell (`Spared.of_inputs`), in a pass
    that is not over the inputs of a `Known` choice, and where beam search permuted the cache.
    """

    def __init__(self, model: nn.Module, spared: Spared | None, stack: ExitStack) -> None:
        if spared is not None and spared.of_inputs:
            raise InputError(
                f"{type(spared).__name__}: its tokens are found in whole inputs, which a pass does not show: give "
                "spared.known(model, inputs)"
            )
        self.spared = spared
        self._model = unwrapped(model)
        self._samples: Samples | None = None
        self._every: Columns | None = None  # from the first in the cache on
        self._own: Columns | None = None
        self._now: Tensor | None = None
        self._passes = Passes(self._model, self._begin, self._end)
        self._passes.attach(stack, first=True)

    @property
    def now(self) -> Bool[Tensor, "batch position"]:
        """Which columns of this pass are spared; padding is not."""
        return self._of_pass(self._now)

    @property
    def real(self) -> Bool[Tensor, "batch position"]:
        """Which columns of this pass are no padding."""
        return self._of_pass(self._own).real

    @property
    def so_far(self) -> Bool[Tensor, "batch column"]:
        """Which columns are spared, from the first in the cache on; padding is not."""
        return self._among(self._of_pass(self._every))

    @property
    def every(self) -> Columns:
        """All columns so far, from the first in the cache on."""
        return self._of_pass(self._every)

    @property
    def real_so_far(self) -> Bool[Tensor, "batch column"]:
        """Which columns are no padding, from the first in the cache on."""
        return self._of_pass(self._every).real

    def exempt(self, x: Tensor) -> Bool[Tensor, "..."]:
        """What a quantizer leaves alone in x (batch, position, …) or (batch · position, …): spared tokens, and padding.

        Broadcasts to x. Raises `UnsupportedModelError` for a tensor over other tokens, such as routed ones.
        """
        left = (self.now | ~self.real).to(x.device)
        if x.shape[:2] == left.shape:
            return left.view(*left.shape, *[1] * (x.ndim - 2))
        if x.shape[0] == left.numel():
            return left.view(-1, *[1] * (x.ndim - 1))
        raise UnsupportedModelError(
            f"a tensor {tuple(x.shape)} in a pass of {left.shape[0]} rows of {left.shape[1]} columns: it is over other "
            "tokens (routed to an expert, or of another stack), so which of them are spared cannot be told"
        )

    def _of_pass(self, known: Kind | None) -> Kind:
        """What is known of the pass under way. Raises `InputError` where there is none."""
        self._passes.now  # noqa: B018
        assert known is not None
        return known

    def _begin(self, begun: Pass, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        forward = begun.forward
        check_order(forward)
        if self._samples is None or not self._samples.continues(forward):
            self._samples = Samples(forward.batch, forward.seen, prefix=forward.prefix)
        given = arguments(self._model, args, kwargs)
        self._every = every_column(self._model, forward, given, self._earlier(self._samples))
        self._own = own_columns(self._every, forward)
        self._now = self._among(self._own)

    def _end(self, done: Pass, output: Any) -> None:
        assert self._samples is not None
        assert self._every is not None
        self._samples.extend(done.forward, self._every.index.shape[1], cache_of(output))

    def _among(self, columns: Columns) -> Bool[Tensor, "batch position"]:
        if self.spared is None:
            return torch.zeros_like(columns.real)
        return self.spared.among(columns) & columns.real

    @staticmethod
    def _earlier(samples: Samples) -> Int[Tensor, "batch seen"] | None:
        """Ids of everything before this pass, where this has seen it all."""
        if samples.first or not samples.ids:
            return None
        return functional.pad(torch.cat(samples.ids, 1), (samples.prefix, 0), value=UNKNOWN)
