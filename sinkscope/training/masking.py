"""Masked language modeling: a model that sees both sides predicts hidden tokens (Devlin et al. 2019)."""

from __future__ import annotations

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from sinkscope.data import UNSCORED, Window, ordinary_tokens, seeded, vocabulary_size
from sinkscope.errors import InputError
from sinkscope.errors.invalid import ConfigPart


class MaskedTokens(ConfigPart):
    """L = mean over chosen positions i of −log P(x_i | x̃), in nats, with x̃ the window after tokens were hidden.

    Every scored token, except special tokens and those that `data.interventions` wrote, is chosen with probability
    `share`. A share `mask` of the chosen tokens becomes the mask token, a share `random` a token drawn uniformly from
    the vocabulary without special tokens, and the others stay. Training draws by (`seed`, item), so anew in every pass;
    validation draws by (`data.split_seed`, window), so the same at every step and for every seed. Source: Devlin et al.
    2019, who draw once for all passes.
    """

    share: float = Field(default=0.15, gt=0, lt=1)
    mask: float = Field(default=0.8, ge=0, le=1)
    random: float = Field(default=0.1, ge=0, le=1)

    @model_validator(mode="after")
    def _parts_of_a_whole(self) -> MaskedTokens:
        if self.mask + self.random > 1 + 1e-9:
            raise InputError(
                f"loss.masked: mask = {self.mask:g} and random = {self.random:g} are shares of the hidden tokens; "
                "together they are at most 1"
            )
        return self


class Masked(Dataset[Window]):
    """Windows with hidden tokens: `input_ids` are x̃, `labels` are x at the chosen positions and −100 elsewhere.

    If the windows have labels, only positions whose label is their own token can be chosen. The draw depends on
    (`draw`, item) alone, so that a resumed run sees the same; other entries of a window are kept.
    """

    def __init__(
        self, windows: Dataset, tokenizer: PreTrainedTokenizerBase, masked: MaskedTokens, *draw: object
    ) -> None:
        self.windows, self.masked, self.draw = windows, masked, draw
        self.mask_token = tokenizer.mask_token_id
        self.special = torch.tensor(tokenizer.all_special_ids)
        self.ordinary = ordinary_tokens(tokenizer, vocabulary_size(tokenizer))

    def __len__(self) -> int:
        return len(self.windows)  # type: ignore[arg-type]

    def __getitem__(self, item: int) -> Window:
        window: Window = dict(self.windows[item])
        ids, generator = window["input_ids"].clone(), seeded("mask", *self.draw, item)
        chosen = (torch.rand(len(ids), generator=generator) < self.masked.share) & self._maskable(window)
        window["labels"] = torch.where(chosen, ids, UNSCORED)
        # Drawn for every token, so that a token's fate does not depend on how many before it were chosen.
        fate = torch.rand(len(ids), generator=generator)
        drawn = self.ordinary[torch.randint(len(self.ordinary), (len(ids),), generator=generator)]
        # In place on the clone; `labels` above were copied from it while it still held the text.
        ids[chosen & (fate < self.masked.mask)] = self.mask_token
        replaced = chosen & (fate >= self.masked.mask) & (fate < self.masked.mask + self.masked.random)
        ids[replaced] = drawn[replaced]
        window["input_ids"] = ids
        return window

    def _maskable(self, window: Window) -> Tensor:
        """Which tokens may be hidden: not a token that an intervention wrote, which differs from its label."""
        ids = window["input_ids"]
        ordinary = ~torch.isin(ids, self.special)
        return ordinary & (ids == window["labels"]) if "labels" in window else ordinary
