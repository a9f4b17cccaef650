"""LLM.int8: columns with outliers in full precision, all others in 8 bits (Dettmers et al. 2022)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.grids import Grid, fake_quantize
from sinkscope.interventions import Intervention
from sinkscope.quantization.linear.experts import Routing
from sinkscope.quantization.linear.maps import HEAD, LinearMap, linear_maps
from sinkscope.quantization.linear.tokens import LeftAlone, check_read, read_inputs
from sinkscope.quantization.linear.transform import check_unrounded
from sinkscope.quantization.protected import Protect, described, random_tokens
from sinkscope.registry import renamed_argument

INT8 = Grid(8, "token", symmetric=True)


@renamed_argument("spared", "protect")
@dataclass(frozen=True)
class OutlyingColumns(Intervention):
    """y = Q(W)_R Q(x_R) + W_O x_O: the inputs O in which any token of a text has |x_j| ≥ threshold stay in full
    precision.

    All other inputs R are rounded to 8 bits, x per token and W per output, symmetrically. O is computed in each call
    for each row of the batch, over its real, unprotected tokens; protected tokens stay in full precision. In
    bitsandbytes, all rows of a call share one O, so that the result of a text depends on its batch. The threshold is
    absolute, so a model with small activations keeps few columns and one with large activations keeps most: report the
    share that `kept` returns together with any result. threshold 0 keeps all columns, infinity none.

    Control: as many random tokens protected, if some are. Raises `UnsupportedModelError` for stacked experts (name them
    in `skip`). Source: Dettmers et al. 2022, section 3; bitsandbytes computes W_O from 8 bits if it has stored W in 8
    bits.
    """

    threshold: float = 6.0
    protect: Protect | str | None = None
    skip: Sequence[str] = (HEAD,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "skip", (self.skip,) if isinstance(self.skip, str) else tuple(self.skip))
        if not self.threshold >= 0:
            raise InputError(f"threshold = {self.threshold}: expected a magnitude of at least 0, such as 6")

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        maps = _plain(linear_maps(model, self.skip))
        check_unrounded(maps.values())
        alone = LeftAlone(model, self.protect, stack)
        for one in maps.values():
            weight = one.weight  # in full precision, before it is replaced
            split = _Split(one, weight, alone, self.threshold)
            one.edit_input(split.entering, stack)
            alone.uses.require(one)
            # prepend=True: all other hooks see the whole output.
            handle = one.module.register_forward_hook(split.leaving, prepend=True, always_call=True)
            stack.callback(handle.remove)
            one.replace(fake_quantize(weight, INT8), stack, rounded=True)

    def kept(self, model: nn.Module, inputs: Any) -> dict[str, float]:
        """The share of columns of each map that stay in full precision, averaged over the rows of `inputs`."""
        maps = _plain(linear_maps(model, self.skip))
        shares: dict[str, list[float]] = {}

        def read(path: str, rows: Tensor, experts: Tensor | None) -> None:
            shares.setdefault(path, []).append(float((rows.abs() >= self.threshold).any(0).float().mean()))

        read_inputs(model, inputs, maps.values(), read, self.protect, None, batch_size=1)
        check_read(maps, shares)
        return {path: sum(shares[path]) / len(shares[path]) for path in maps}

    def control(self, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> OutlyingColumns:
        return replace(self, protect=random_tokens(self.protect, generator, model, inputs))

    def describe(self) -> dict[str, Any]:
        return {
            "name": "OutlyingColumns",
            "threshold": self.threshold,
            "protect": described(self.protect),
            "skip": list(self.skip),
            "grid": asdict(INT8),
        }


class _Split:
    """The input of one map, split on entry; the full-precision part is added to its output."""

    def __init__(self, one: LinearMap, weight: Tensor, alone: LeftAlone, threshold: float) -> None:
        self.one, self.weight, self.alone, self.threshold = one, weight, alone, threshold
        self.aside: Tensor | None = None

    def entering(self, x: Tensor, routing: Routing | None) -> Tensor:
        self.alone.uses.used(self.one)
        left = self.alone.rows(self.one, x, routing)
        high = self._high(x, left, self.alone.texts(self.one, x, routing))
        whole = high if left is None else high | left
        self.aside = torch.where(whole, x, 0)
        # Zeros in place of what is set aside: a symmetric grid holds 0, and 0 widens no range.
        return fake_quantize(torch.where(whole, 0, x), INT8)

    def leaving(self, module: nn.Module, args: tuple[Any, ...], output: Tensor | None) -> Tensor | None:
        aside, self.aside = self.aside, None
        if output is None:  # the map raised an error
            return None
        assert aside is not None
        return output + aside @ self.weight.mT  # the bias is in `output` already

    def _high(self, x: Tensor, left: Tensor | None, texts: Int[Tensor, " first"] | None) -> Bool[Tensor, "*first in"]:
        high = x.abs() >= self.threshold
        high = high if left is None else high & ~left
        if texts is None:
            return high.flatten(1, -2).any(1).view(len(x), *[1] * (x.ndim - 2), -1)
        # (first, in), then (text, in): whether any token of the text reaches the threshold.
        flat = high.flatten(1, -2).any(1) if high.ndim > 2 else high
        outlying = (
            torch.zeros(int(texts.max()) + 1, x.shape[-1], device=x.device).index_add_(0, texts, flat.float()) > 0
        )
        return outlying[texts].view(len(x), *[1] * (x.ndim - 2), -1)


def _plain(maps: Mapping[str, LinearMap]) -> Mapping[str, LinearMap]:
    for path, one in maps.items():
        if one.stacked:
            raise UnsupportedModelError(
                f"'{path}': LLM.int8 splits a product, which stacked experts compute internally; name it in skip"
            )
    return maps
