"""A bidirectional encoder: transformers' `BertForMaskedLM`, trained to fill in masked tokens (Devlin et al. 2019)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerBase

from sinkscope.data import PreparedData, Window, as_encoder, prepare, seeded
from sinkscope.training.kinds.kind import Kind
from sinkscope.training.masking import Masked, MaskedTokens
from sinkscope.training.recipe import Recipe

FRAME = 3  # [CLS] and two [SEP]
HIDDEN = MaskedTokens()


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
    objective=lambda sequences, tokenizer, seed: Masked(sequences, tokenizer, HIDDEN, seed),
    sink_tokens=128,
    about={
        "model": "bert",
        "sequence": "[CLS] A [SEP] B [SEP]",
        "objective": {"chosen": HIDDEN.share, "masked": HIDDEN.mask, "random": HIDDEN.random},
    },
)
