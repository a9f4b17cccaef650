"""The masked-language objective over framed text, item by item and without a state (Devlin et al. 2019, §3.1 [X6])."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from sinkscope.data.inputs import ordinary_tokens
from sinkscope.data.windows import Window, seeded

FRAME = 3  # [CLS] and two [SEP]
UNSCORED = -100
CHOSEN, MASKED, RANDOM = 0.15, 0.8, 0.1


class Framed(Dataset[Window]):
    """`[CLS] A [SEP] B [SEP]` for every window A B of text: (context + 3,) int64.

    Where A ends is drawn uniformly from 1 … context − 1 by (`seed`, item), so that a [SEP] is met at every position. B
    goes on where A ended: of BERT's pairs these are the consecutive ones, and no loss asks about the pair.
    """

    def __init__(self, windows: Dataset, tokenizer: PreTrainedTokenizerBase, seed: int) -> None:
        self.windows, self.seed = windows, seed
        self.cls, self.sep = torch.tensor([tokenizer.cls_token_id]), torch.tensor([tokenizer.sep_token_id])

    def __len__(self) -> int:
        return len(self.windows)  # type: ignore[arg-type]

    def __getitem__(self, item: int) -> Window:
        text = self.windows[item]["input_ids"]
        cut = int(torch.randint(1, len(text), (), generator=seeded("frame", self.seed, item)))
        return {"input_ids": torch.cat([self.cls, text[:cut], self.sep, text[cut:], self.sep])}


class Masked(Dataset[Window]):
    """`{"input_ids", "labels"}`, both (context,) int64: a share of the tokens is hidden, and those alone are scored.

    Every token but the special ones is chosen with probability 0.15 by (`seed`, item). Of the chosen ones 80 % become
    [MASK], 10 % a token drawn uniformly from the vocabulary without special tokens, 10 % stay; `labels` are -100
    elsewhere. Unlike transformers' collator it draws each item on its own, so that a resumed run sees the same masks.
    """

    def __init__(self, sequences: Dataset, tokenizer: PreTrainedTokenizerBase, seed: int) -> None:
        self.sequences, self.seed = sequences, seed
        self.mask = tokenizer.mask_token_id
        self.special = torch.tensor(tokenizer.all_special_ids)
        self.ordinary = ordinary_tokens(tokenizer, len(tokenizer))

    def __len__(self) -> int:
        return len(self.sequences)  # type: ignore[arg-type]

    def __getitem__(self, item: int) -> Window:
        sequence: Mapping[str, Tensor] = self.sequences[item]
        ids = sequence["input_ids"].clone()
        generator = seeded("mask", self.seed, item)
        chosen = (torch.rand(len(ids), generator=generator) < CHOSEN) & ~torch.isin(ids, self.special)
        labels = torch.where(chosen, ids, UNSCORED)
        fate = torch.rand(len(ids), generator=generator)
        drawn = self.ordinary[torch.randint(len(self.ordinary), (len(ids),), generator=generator)]
        ids[chosen & (fate < MASKED)] = self.mask
        replaced = chosen & (fate >= MASKED) & (fate < MASKED + RANDOM)
        ids[replaced] = drawn[replaced]
        return {"input_ids": ids, "labels": labels}
