"""Dark energy: what the residual stream holds in the last spectral band of the unembedding [X10]."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int


@dataclass(frozen=True, eq=False)
class DarkShares:
    """Share of ‖h‖² in the last band, per sample and depth: of the probed token, and the mean of all other tokens."""

    probed: Float[np.ndarray, "sample depth"]
    others: Float[np.ndarray, "sample depth"]


def dark_shares(
    band_energy: Float[np.ndarray, "sample depth band"],
    band_energy_mean: Float[np.ndarray, "sample depth band"],
    tokens: Int[np.ndarray, "sample"],
) -> DarkShares:
    """The last band of a probed token against all other tokens [X10].

    `band_energy`: at one probe position, `tokens`: real tokens T of each sample. The mean over all tokens holds the
    probed one, so that of the others is (T · mean − probed) / (T − 1); NaN with T < 2. Source: Cancedda 2024.
    """
    probed, mean = band_energy[..., -1], band_energy_mean[..., -1]
    count = np.where(tokens > 1, tokens, np.nan)[:, None]
    return DarkShares(probed, np.maximum((count * mean - probed) / (count - 1), 0))
