"""The training loss: which tokens it scores, what these see, and added terms (Gu et al. 2025, section 6)."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt, field_validator
from torch import Tensor
from torch.utils.data import Dataset

from sinkscope.data import UNSCORED
from sinkscope.errors import InputError
from sinkscope.errors.invalid import ConfigPart
from sinkscope.training.masking import MaskedTokens
from sinkscope.training.penalty import ActivationPenalty


class Loss(ConfigPart):
    """Mean next-token cross-entropy in nats over a window's tokens except the first; `masked` for bidirectional models.

    Attributes:
        prefix: p > 0 is prefix language modeling, L = Σ_{t > p} log P(x_t | x_{p+1..t−1}, x_{1..p}): every token sees
            the first p, and those are not predicted. The operation's mask becomes `mask | prefix(p)`; with
            intra-document packing `mask | (prefix(p) & document)`, so that only its own document sees a prefix.
            Source: Gu et al. 2025, section 6.
        leaky_validation: score the prefix in validation, as the paper's code does, although those tokens see their own
            targets; off by default, so that losses compare.
        window: w is shifted window attention, L = Σ_t log P(x_t | x_{t−w..t−1}): every token sees w tokens, itself
            included. The operation's mask becomes `mask & window(w)`; a prefix is added afterwards.
        activation_penalty: added in training only, so that validation losses compare.
        masked: the objective of bidirectional models.
        z_loss: the factor of mean_t (log Σ_v exp z_tv)² over the scored tokens, added in training only, which keeps
            logits z from drifting (Chowdhery et al. 2022, section 5, with 1e-4).
    """

    prefix: NonNegativeInt = 0
    leaky_validation: bool = False
    window: PositiveInt | None = None
    activation_penalty: ActivationPenalty | None = None
    masked: MaskedTokens | None = None
    z_loss: NonNegativeFloat = 0.0

    @field_validator("activation_penalty")
    @classmethod
    def _some(cls, penalty: ActivationPenalty | None) -> ActivationPenalty | None:
        """A penalty of strength 0 becomes None: the same numbers, hence the same hash."""
        return penalty if penalty is not None and penalty.strength else None

    def examples(self, windows: Dataset, *, validating: bool = False) -> Dataset:
        """The windows with the labels to score. Raises `InputError` for a prefix that leaves nothing to predict."""
        if self.prefix == 0 or (validating and self.leaky_validation):
            return windows
        return _WithoutPrefix(windows, self.prefix)


class _WithoutPrefix(Dataset[Mapping[str, Tensor]]):
    def __init__(self, windows: Dataset, prefix: int) -> None:
        self.windows, self.prefix = windows, prefix
        context = len(windows[0]["labels"])
        if prefix >= context:
            raise InputError(f"loss.prefix = {prefix} leaves nothing to predict in a window of {context} tokens")

    def __len__(self) -> int:
        return len(self.windows)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Mapping[str, Tensor]:
        window = dict(self.windows[index])
        # A copy: what a dataset returns may be what it keeps.
        window["labels"] = window["labels"].clone()
        window["labels"][: self.prefix] = UNSCORED
        return window
