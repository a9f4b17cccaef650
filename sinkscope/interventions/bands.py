"""Spectral filters on the residual stream (Cancedda 2024)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sinkscope.errors import InputError
from sinkscope.hooks import OpenStream, unembedding
from sinkscope.interventions.intervention import Intervention, whole
from sinkscope.registry import renamed_argument
from sinkscope.statistics.spectral import spectral_bands


@renamed_argument("spared", "protect")
@dataclass(frozen=True)
class SuppressBands(Intervention):
    """h ← h − V_b V_bᵀ h, with V_b the right singular vectors of the unembedding in `bands`; band 0 has the largest.

    Raises `InputError` for bands that do not exist, and `UnsupportedModelError` for models without an unembedding.
    Control: a random orthonormal basis instead of the unembedding's. Source: Cancedda 2024; here W_U is taken without
    the gain of the final norm.

    Attributes:
        bands: Which bands to remove; with 20, band 19 is the "dark" one.
        protect: Positions whose stream stays unchanged, by default the first token.
        positions: Only these positions; None for all others.
        depths: Where; None for the output of each block.
        count: How many bands of equal width there are.
        seed: Draws a random basis; None for the unembedding's.
    """

    bands: Sequence[Any]
    protect: Sequence[Any] = (0,)
    positions: Sequence[Any] | None = None
    depths: Sequence[Any] | None = None
    count: int = 20
    seed: int | None = None

    def __post_init__(self) -> None:
        for name in ("bands", "protect", "positions", "depths"):
            if (values := getattr(self, name)) is not None:
                object.__setattr__(self, name, whole(name, values) if name == "bands" or len(values) else ())
        if max(self.bands) >= self.count:
            raise InputError(f"band {max(self.bands)} does not exist: {self.count} bands are 0 to {self.count - 1}")

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        opened = OpenStream(model, stack)
        directions = self._directions(model)
        all_depths = range(1, opened.stream.depth + 1)
        for depth in all_depths if self.depths is None else self.depths:
            opened.edit(depth, self._filter(opened, directions))

    def control(self, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> SuppressBands:
        return replace(self, seed=int(torch.randint(2**31, (1,), generator=generator)))

    @property
    def positions_named(self) -> tuple[int, ...]:
        return () if self.positions is None else tuple(self.positions)

    def _directions(self, model: nn.Module) -> Float[Tensor, "width n"]:
        basis, slices = spectral_bands(unembedding(model), self.count)
        if self.seed is not None:
            generator = torch.Generator().manual_seed(self.seed)
            # Columns of Q span random subspaces: cut into the same slices, the control removes as many directions.
            basis = torch.linalg.qr(torch.randn(basis.shape, generator=generator)).Q
        return torch.cat([basis[:, slices[band]] for band in self.bands], 1)

    def _filter(self, opened: OpenStream, directions: Tensor) -> Any:
        def edit(hidden: Tensor) -> Tensor:
            if hidden.shape[-1] != len(directions):
                raise InputError(
                    f"the unembedding reads vectors of width {len(directions)}, but the residual stream has width "
                    f"{hidden.shape[-1]}, so it has no such bands"
                )
            away = directions.to(hidden.device)
            wide = hidden.float()
            # V_b is orthonormal, so this is a projection. From left to right, no (width, width) matrix is formed.
            filtered = (wide - wide @ away @ away.mT).to(hidden.dtype)
            chosen = opened.at(None if self.positions is None else tuple(self.positions), hidden)
            chosen = chosen & ~opened.at(tuple(self.protect), hidden)
            return torch.where(chosen[..., None], filtered, hidden)

        return edit
