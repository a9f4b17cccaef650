"""Shape of the residual stream: entropy of its spectrum, alignment with the first token, spread, raw vectors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.errors import check_whole
from sinkscope.measurement.observers.kept import POSITIONS
from sinkscope.measurement.observers.observer import Array, Hidden, LayerSums, Observer, Piece, divide, in_every
from sinkscope.measurement.observers.rows import checked_positions, whole, whole_rows


@in_every
@dataclass(frozen=True)
class MatrixEntropy(Observer):
    """−Σ p_i log p_i in nats, p_i = σ_i² / Σ σ_j² of the row's hidden states (token × width): `matrix_entropy`.

    Not centered. 0: all tokens lie on one line, as when one massive token outweighs all others (the compression
    valley); log of the number of tokens: orthogonal ones of one length. (sample, depth). Longer rows are sampled at
    `tokens` evenly spaced real tokens, including the first; entropies of different numbers of tokens are not
    comparable. NaN for rows that a cache continues. Cost: O(tokens² · width + tokens³) a block, in float64 on the CPU:
    rounding of the largest σ² would otherwise hide the others. Source: Skean et al. 2025, the matrix-based entropy of
    order 1.
    """

    tokens: int = 256

    def __post_init__(self) -> None:
        check_whole("tokens", self.tokens)

    @property
    def reads_blocks(self) -> bool:
        return True

    def on_hidden(self, hidden: Hidden) -> Iterable[Piece]:
        return whole_rows(hidden, self._of_row)

    def arrays(self, layer: LayerSums) -> dict[str, Array]:
        return {"matrix_entropy": Array(whole(layer, "entropy"), None)} if "entropy" in layer.sums else {}

    def _of_row(self, values: Float[Tensor, "position width"]) -> Mapping[str, Tensor]:
        taken = min(self.tokens, len(values))
        index = torch.arange(taken, device=values.device) * len(values) // taken
        chosen = values[index].to("cpu", torch.float64).numpy()  # numpy's take two thirds of torch's time
        with np.errstate(all="ignore"):
            # X Xᵀ and Xᵀ X have the same nonzero eigenvalues σ²; the smaller matrix is taken.
            products = chosen @ chosen.T if taken <= chosen.shape[1] else chosen.T @ chosen
        if not np.isfinite(products).all():
            return {"entropy": values.new_tensor(torch.nan)}
        energies = np.linalg.eigvalsh(products).clip(min=0)  # rounding puts some zeros below 0
        shares = torch.from_numpy(energies / max(energies.sum(), np.finfo(np.float64).tiny))
        return {"entropy": torch.special.entr(shares).sum().to(values)}


@in_every
@dataclass(frozen=True)
class HiddenSimilarity(Observer):
    """cos(h_t, h_0) with the row's first real token, per depth: `cos_hidden_first` (sample, depth, position).

    `metrics.secondary_sinks` reads it. NaN for tokens added by a later pass over a cache: the first token's state is
    gone by then. Cost: O(T · width) a block.
    """

    @property
    def reads_blocks(self) -> bool:
        return True

    def on_hidden(self, hidden: Hidden) -> Iterable[Piece]:
        if hidden.start:
            return
        columns, _ = hidden.locate((0,))
        values = hidden.values.float()
        first = values.gather(1, columns[..., None].expand(-1, -1, values.shape[-1]))
        products = (values @ first.mT).squeeze(-1)  # (batch, position, width) @ (batch, width, 1)
        cosines = products / (hidden.lengths * first.norm(dim=-1)).clamp(min=torch.finfo(torch.float32).tiny)
        yield Piece("cosine", cosines[:, None], 0)

    def arrays(self, layer: LayerSums) -> dict[str, Array]:
        return {"cos_hidden_first": Array(layer.sums["cosine"], "query")} if "cosine" in layer.sums else {}


@in_every
@dataclass(frozen=True)
class Mixing(Observer):
    """How far the tokens of a row are from being identical, per row and depth.

    `hidden_spread` = ‖H − 1 mean(H)ᵀ‖_F over real tokens, 0 at rank collapse; `last_pair_distance` = ‖h_n − h_{n−1}‖ of
    the last two real tokens, which goes to 0 as representations collapse (NaN in rows of one token). NaN for rows that
    a cache continues. Cost: O(T · width) a block. Source: Barbero et al. 2024 and 2025.
    """

    @property
    def reads_blocks(self) -> bool:
        return True

    def on_hidden(self, hidden: Hidden) -> Iterable[Piece]:
        return whole_rows(hidden, _mixing)

    def arrays(self, layer: LayerSums) -> dict[str, Array]:
        if "spread" not in layer.sums:
            return {}
        return {
            "hidden_spread": Array(whole(layer, "spread"), None),
            "last_pair_distance": Array(divide(whole(layer, "distance"), layer.sums["pairs"]), None),
        }


@in_every
@dataclass(frozen=True)
class HiddenVectors(Observer):
    """Raw states h_t of the first `kept` samples: `hidden_vectors` (kept, depth, kept_position, width).

    `positions` count real tokens; beyond a row's end they are NaN. Passes over a cache add their tokens. For
    `metrics.principal_components` and `metrics.separation`. Cost: memory only, kept · depths · positions · width.
    Source: Han et al. 2024.
    """

    kept: int = 8
    positions: Sequence[int] = POSITIONS

    def __post_init__(self) -> None:
        check_whole("kept", self.kept)
        object.__setattr__(self, "positions", checked_positions(self.positions))

    @property
    def coordinates(self) -> Mapping[str, Sequence[int]]:
        return {"kept_position": self.positions}

    @property
    def reads_blocks(self) -> bool:
        return True

    def on_hidden(self, hidden: Hidden) -> Iterable[Piece]:
        rows = slice(0, min(len(hidden.values), self.kept - hidden.samples_before))
        if rows.stop <= 0:
            return
        columns, present = (part[rows] for part in hidden.locate(self.positions))
        index = columns[..., None].expand(-1, -1, hidden.values.shape[-1])
        vectors = hidden.values[rows].gather(1, index).float()
        yield Piece("vector", vectors.where(present[..., None], 0.0)[:, None], None, rows)
        yield Piece("present", present[:, None, :, None].float(), None, rows)

    def arrays(self, layer: LayerSums) -> dict[str, Array]:
        if "vector" not in layer.sums:
            return {}
        vectors = divide(layer.sums["vector"], layer.sums["present"])
        return {"hidden_vectors": Array(vectors, None, ("kept_position", "width"), kept=self.kept)}


def _mixing(values: Float[Tensor, "position width"]) -> Mapping[str, Tensor]:
    last = values[-2:]
    return {
        "spread": (values - values.mean(0)).norm(),
        "distance": (last[-1] - last[0]).norm(),
        "pairs": values.new_tensor(float(len(last) == 2)),
    }
