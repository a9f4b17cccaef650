"""The validation loss: a mean over tokens, independent of how they are batched."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

from sinkscope.data import UNSCORED
from sinkscope.errors import InputError


def targets(labels: Int[Tensor, "batch position"], shifted: bool) -> Int[Tensor, "batch position"]:
    """The token predicted at each position: its own label, or (`shifted`) the next one's; −100 if none is scored."""
    return F.pad(labels, (0, 1), value=UNSCORED)[:, 1:] if shifted else labels


def by_sequence(
    logits: Float[Tensor, "batch position vocabulary"], labels: Int[Tensor, "batch position"], *, shifted: bool
) -> Float[Tensor, "batch both"]:
    """For each sequence: Σ_t −log P(x_t) in nats over the scored tokens, and the number of these."""
    predicted = targets(labels, shifted)
    losses = F.cross_entropy(logits.float().flatten(0, 1), predicted.flatten(), ignore_index=UNSCORED, reduction="none")
    return torch.stack([losses.view_as(predicted).sum(1), (predicted != UNSCORED).sum(1)], 1)


def token_mean(sequences: Float[Tensor, "sequence both"]) -> float:
    """The mean over all scored tokens, from the result of `by_sequence`."""
    total, count = sequences.double().sum(0).tolist()
    return float(total / count)


def require_scored(windows: Dataset, *, shifted: bool) -> None:
    """Raises `InputError` if no token of any validation window is scored, so that there is no loss to compute."""
    for index in range(len(windows)):  # type: ignore[arg-type]
        if bool((targets(windows[index]["labels"][None], shifted) != UNSCORED).any()):
            return
    raise InputError(
        f"none of the {len(windows)} validation windows has a token that the loss scores: "  # type: ignore[arg-type]
        "raise data.validation_share, validation_windows or context"
    )
