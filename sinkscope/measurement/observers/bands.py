"""Energy of the residual stream in the spectral bands of the unembedding (Cancedda 2024)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sinkscope.errors import UnsupportedModelError
from sinkscope.hooks import unembedding
from sinkscope.measurement.observers.observer import Array, Hidden, LayerSums, Piece, divide, in_every
from sinkscope.measurement.observers.rows import ProbeObserver
from sinkscope.statistics.spectral import band_slices, spectral_bands


@dataclass(frozen=True, eq=False)
class _Basis:
    """The singular directions of W_U, computed on first use, and the band of each."""

    unembedding: Float[Tensor, "vocabulary width"]
    count: int

    @cached_property
    def directions(self) -> Float[Tensor, "width width"]:
        return spectral_bands(self.unembedding, self.count)[0].to(self.unembedding.device)

    @cached_property
    def members(self) -> Float[Tensor, "width band"]:
        """1 where a direction belongs to a band."""
        width = self.unembedding.shape[1]
        members = torch.zeros(width, self.count, device=self.unembedding.device)
        for band, rows in enumerate(band_slices(width, self.count)):
            members[rows, band] = 1
        return members

    def shares(self, hidden: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch band"]:
        """‖V_bᵀ h‖² / ‖h‖² for each band b; 0 where h = 0."""
        directions, members = self.directions.to(hidden.device), self.members.to(hidden.device)
        energies = (hidden.float() @ directions).square_() @ members
        # The directions are orthonormal, so this sum is ‖h‖², with the same rounding as its parts.
        return energies / energies.sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)


@in_every
@dataclass(frozen=True)
class SpectralBands(ProbeObserver):
    """Share of ‖h_t‖² in each of `count` bands of the unembedding's right singular directions, strongest first.

    `band_energy` (sample, depth, probe_position, band) for the tokens at `positions` (counting real tokens),
    `band_energy_mean` (sample, depth, band) as the mean of the shares over all real tokens. W_U = U S Vᵀ is cut as
    `metrics.spectral_bands` says; shares of all bands add up to 1. Passes over a cache add their tokens. Streams whose
    width is not the unembedding's (a vision tower) have no bands. Raises `UnsupportedModelError` for models without an
    unembedding, or narrower than `count`. Cost: a product T × width × width per block (about 8 % of a GPT-2 block);
    once per model O(width² · vocabulary + width³), so it is not part of "all". Source: Cancedda 2024.
    """

    in_all: ClassVar[bool] = False
    count: int = 20
    basis: _Basis | None = field(default=None, repr=False, compare=False)

    @property
    def coordinates(self) -> Mapping[str, Sequence[int]]:
        return {"probe_position": self.positions, "band": range(self.count)}

    def bound(self, model: nn.Module) -> SpectralBands:
        weight = unembedding(model)
        if self.count > weight.shape[1]:
            raise UnsupportedModelError(
                f"{self.count} spectral bands of a residual stream of width {weight.shape[1]}: ask for fewer bands"
            )
        return replace(self, basis=_Basis(weight, self.count))

    def describe(self) -> dict[str, Any]:
        return {"name": type(self).__name__, "count": self.count, "positions": self.positions}

    def on_hidden(self, hidden: Hidden) -> Iterable[Piece]:
        if self.basis is None or hidden.values.shape[-1] != self.basis.unembedding.shape[-1]:
            return
        shares = self.basis.shares(hidden.values)
        columns, present = hidden.locate(self.positions)
        probed = shares.gather(1, columns[..., None].expand(-1, -1, self.count))
        yield Piece("probed", probed.where(present[..., None], 0.0)[:, None])
        yield Piece("present", present[:, None, :, None].float())
        counted = hidden.counted
        yield Piece("total", shares.where(counted[..., None], 0.0).sum(1, keepdim=True))
        yield Piece("tokens", counted.sum(1)[:, None, None].float())

    def arrays(self, layer: LayerSums) -> dict[str, Array]:
        if "total" not in layer.sums:
            return {}
        return {
            "band_energy": Array(divide(layer.sums["probed"], layer.sums["present"]), None, ("probe_position", "band")),
            "band_energy_mean": Array(divide(layer.sums["total"], layer.sums["tokens"]), None, ("band",)),
        }
