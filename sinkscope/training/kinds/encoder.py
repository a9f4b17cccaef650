"""A bidirectional encoder: transformers' `BertForMaskedLM`, trained to fill in masked tokens (Devlin et al. 2019)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerBase

from sinkscope.data import UNSCORED, PreparedData, Window, as_encoder, ordinary_tokens, prepare, seeded
from sinkscope.training.kinds.kind import Kind
from sinkscope.training.recipe import Recipe

FRAME = 3  # [CLS] and two [SEP]
CHOSEN, MASKED, RANDOM = 0.15, 0.8, 0.1


class Framed(Dataset[Window]):
    """`[CLS] A [SEP] B [SEP]` for every window A B of text: (context + 3,) int64.

    Where A ends is drawn uniformly from 1 … context − 1 by (`seed`, item), so that a [SEP] is met at every position. B
    goes on where A ended: of BERT's pairs these are the consecutive ones, and no loss depends on the pair.
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
        sequence: Window = self.sequences[item]
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


def encoder_data(recipe: Recipe) -> PreparedData:
    """The corpus in windows that leave room for the frame, with the tokenizer that builds it.

    The corpus's own end-of-document token is the tokenizer's [SEP], hence also one between documents.
    """
    config = recipe.data.model_copy(update={"bos": "none"})
    data = prepare(config, recipe.context - FRAME, recipe.seed)
    return replace(data, tokenizer=as_encoder(data.tokenizer))


def encoder_model(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> BertForMaskedLM:
    """BERT at the recipe's sizes: learned positions, post-norm, tied embeddings; no dropout, as in the lab model."""
    config = BertConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=recipe.context,
        pad_token_id=tokenizer.pad_token_id,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        **recipe.model,
    )
    return BertForMaskedLM(config)


ENCODER = Kind(
    model=encoder_model,
    data=encoder_data,
    sequences=Framed,
    objective=Masked,
    sink_tokens=128,
    about={
        "model": "bert",
        "sequence": "[CLS] A [SEP] B [SEP]",
        "objective": {"chosen": CHOSEN, "masked": MASKED, "random": RANDOM},
    },
)
