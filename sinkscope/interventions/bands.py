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
    """h ← h − V_b V_bᵀ h, V_b the right singular vectors of the unembedding in `bands`, band 0 the largest.

    `count` bands of equal width; with 20, band 19 is the "dark" one. `protect`: positions that keep their stream, by
    default the first token's; `positions`: only these, None for all others. `depths`: where, None for every block's
    output. `seed`: a random orthonormal basis in the unembedding's place, which is the control: as many directions, of
    no meaning. Raises `InputError` for bands that do not exist, and `UnsupportedModelError` for models without an
    unembedding. Source: Cancedda 2024; W_U without the final norm's gain, which is our reading.
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
            basis = torch.linalg.qr(torch.randn(basis.shape, generator=generator)).Q
        return torch.cat([basis[:, slices[band]] for band in self.bands], 1)

    def _filter(self, opened: OpenStream, directions: Tensor) -> Any:
        def edit(hidden: Tensor) -> Tensor:
            if hidden.shape[-1] != len(directions):
                raise InputError(
                    f"the unembedding reads vectors of width {len(directions)}, but the residual stream has width "
                    f"{hidden.shape[-1]}: its bands do not exist there"
                )
            away = directions.to(hidden.device)
            wide = hidden.float()
            filtered = (wide - wide @ away @ away.mT).to(hidden.dtype)
            chosen = opened.at(None if self.positions is None else tuple(self.positions), hidden)
            chosen = chosen & ~opened.at(tuple(self.protect), hidden)
            return torch.where(chosen[..., None], filtered, hidden)

        return edit
