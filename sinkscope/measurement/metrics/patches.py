"""Artefact patches and registers of vision transformers (Darcet et al. 2023)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float

from sinkscope.errors import InputError
from sinkscope.statistics import nanmean

if TYPE_CHECKING:
    import pandas as pd


def artefact_patches(
    norms: Float[np.ndarray, "sample position"],
    prefix: int,
    *,
    suffix: int = 0,
    cutoff: float | None = None,
    times: float = 3.0,
) -> Bool[np.ndarray, "sample position"]:
    """Patch tokens of extreme norm: above `cutoff`, or above `times` the sample's median patch norm where it is None.

    Darcet et al. 2023 cut at 150 for DINOv2-g, which is between the two modes of that model's histogram; a ratio to the
    median also fits models of another scale. Raises `InputError` for a cut-off that is not positive.

    Args:
        norms: ‖h‖₂ at the last depth.
        prefix: Number of first tokens that are not patches: CLS, registers.
        suffix: Number of last tokens that are not patches: detection tokens.
        cutoff: The norm above which a patch is an artefact; None uses `times`.
        times: In medians of the sample's patches.
    """
    border = times if cutoff is None else cutoff
    if border <= 0:
        raise InputError(f"the cut-off of artefact patches is {border}: must be positive")
    positions = np.arange(norms.shape[1])
    patches = np.where((positions < prefix) | (positions >= len(positions) - suffix), np.nan, norms)
    if cutoff is None:
        patches = patches / np.nanmedian(patches, axis=1, keepdims=True)
    return patches > border


def patch_table(
    norms: Float[np.ndarray, "sample position"],
    received: Float[np.ndarray, "sample layer head position"] | None,
    prefix: list[str],
    artefacts: Bool[np.ndarray, "sample position"],
    suffix: Mapping[str, int] = MappingProxyType({}),
) -> pd.DataFrame:
    """One row per kind of token: CLS and registers one by one, `suffix` tokens by kind, artefact and other patches.

    Columns: kind, tokens (per image), norm (mean), attention (mean over images, layers and heads of what each such
    token receives). Tokens whose norm is NaN are of no kind, and images without another are not counted.

    Args:
        norms: ‖h‖₂ at the last depth.
        received: Attention received, 0 to 1; None leaves `attention` NaN.
        prefix: Names of the first tokens.
        artefacts: Which patches are artefacts, from `artefact_patches`.
        suffix: Number of last tokens of each kind.
    """
    import pandas as pd

    positions, known = np.arange(norms.shape[1]), ~np.isnan(norms)
    images = max(1, int(known.any(1).sum()))
    kinds = {name: known & (positions == index) for index, name in enumerate(prefix)}
    stop = len(positions) - sum(suffix.values())
    patches = known & (positions >= len(prefix)) & (positions < stop)
    for name, count in suffix.items():
        kinds[name] = known & (positions >= stop) & (positions < stop + count)
        stop += count
    kinds |= {"artefact patch": artefacts, "patch": patches & ~artefacts}
    alpha = np.full(norms.shape, np.nan) if received is None else nanmean(nanmean(received, 2), 1)
    rows = [
        {
            "kind": kind,
            "tokens": chosen.sum() / images,
            "norm": float(norms[chosen].mean()) if chosen.any() else np.nan,
            "attention": float(alpha[chosen].mean()) if chosen.any() else np.nan,
        }
        for kind, chosen in kinds.items()
    ]
    return pd.DataFrame(rows)
