"""Kinds of models as values, trained by one session: the lab model, and an encoder and a hybrid of transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForMaskedLM,
    JambaConfig,
    JambaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from sinkscope.data import PreparedData, Window, as_encoder, encode_data, prepare, seeded, vocabulary_size, with_mask
from sinkscope.training.masking import Masked, MaskedTokens
from sinkscope.training.recipe import Recipe
from sinkscope.training.start import lab_model, start_fingerprint

Metrics = Callable[[PreTrainedModel], Mapping[str, float]]
Examples = Callable[[Dataset, PreTrainedTokenizerBase, int], Dataset]

FRAME = 3  # [CLS] and two [SEP]
MASKED_TOKENS = MaskedTokens()  # of the encoder

PERIOD, OFFSET = 4, 2  # layers 2, 6, 10 … attend: in the middle of each four, as in Jamba's own of eight
STATE, EXPAND = 8, 1


def unchanged(windows: Dataset, tokenizer: PreTrainedTokenizerBase, seed: int) -> Dataset:
    """The windows, which hold a causal model's sequence and labels already."""
    return windows


def prepared(recipe: Recipe) -> PreparedData:
    """The corpus in windows of the recipe's context; the weights that the recipe starts from join its fingerprint.

    Raises `InputError` for a masked objective if the tokenizer has no mask token.
    """
    data = prepare(recipe.data, recipe.context, recipe.seed, number_documents=recipe.numbers_documents)
    fingerprint = data.fingerprint | start_fingerprint(recipe, data.tokenizer)
    tokenizer = data.tokenizer if recipe.loss.masked is None else with_mask(data.tokenizer)
    return replace(data, fingerprint=fingerprint, tokenizer=tokenizer)


def fingerprint(recipe: Recipe) -> dict[str, Any]:
    """The fingerprint of text, tokens and initial weights as `prepared` computes it, without cutting windows."""
    encoded = encode_data(recipe.data)
    return encoded.fingerprint(recipe.data) | start_fingerprint(recipe, encoded.whole.tokenizer)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What a training session needs to know about a kind of model.

    `sequences` and `objective` may depend on an item's number, never on earlier items, so that a resumed run sees what
    an uninterrupted one sees.

    Attributes:
        model: builds the model for a recipe and a tokenizer.
        data: reads a recipe's corpus.
        sequences: turns windows of text into what the model reads; is given the tokenizer and a seed.
        objective: turns these into what the model is trained on; is given the same.
        sink_tokens: the sink is measured on this many first tokens of `sequences`.
        metrics: what else is measured on the model and logged; names start with `task/`.
        about: joins the run's fingerprint and so its hash.
    """

    model: Callable[[Recipe, PreTrainedTokenizerBase], PreTrainedModel]
    data: Callable[[Recipe], PreparedData] = prepared
    sequences: Examples = unchanged
    objective: Examples = unchanged
    sink_tokens: int = 64
    metrics: Metrics = lambda model: {}
    about: dict[str, Any]


LAB = Kind(model=lab_model, about={})


class Framed(Dataset[Window]):
    """`[CLS] A [SEP] B [SEP]` for every window A B of text: (context + 3,) int64.

    The end of A is drawn uniformly from 1 … context − 1 by (`seed`, item), so that a [SEP] occurs at every position. B
    continues A: of BERT's pairs these are the consecutive ones, and no loss depends on the pair.
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

    The corpus's own end-of-document token is the tokenizer's [SEP], which therefore also separates documents.
    """
    # The frame's [CLS] is the first token, where a BOS would be.
    config = recipe.data.model_copy(update={"bos": "none"})
    data = prepare(config, recipe.context - FRAME, recipe.seed)
    return replace(data, tokenizer=as_encoder(data.tokenizer))


def encoder_model(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> BertForMaskedLM:
    """BERT at the recipe's sizes: learned positions, post-norm, tied embeddings; no dropout, as in the lab model."""
    config = BertConfig(
        vocab_size=vocabulary_size(tokenizer),
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
    objective=lambda sequences, tokenizer, seed: Masked(sequences, tokenizer, MASKED_TOKENS, seed),
    sink_tokens=128,
    about={
        "model": "bert",
        "sequence": "[CLS] A [SEP] B [SEP]",
        "objective": {"chosen": MASKED_TOKENS.share, "masked": MASKED_TOKENS.mask, "random": MASKED_TOKENS.random},
    },
)
"""A bidirectional encoder trained to fill in masked tokens (Devlin et al. 2019)."""


def hybrid_model(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> JambaForCausalLM:
    """Jamba at the recipe's sizes, without experts and with tied embeddings; it has no position encoding.

    The state and the inner width of Mamba are small (8 and 1 × width; Jamba has 16 and 2 × width), because the scan
    without GPU kernels takes most of a step.
    """
    config = JambaConfig(
        vocab_size=vocabulary_size(tokenizer),
        max_position_embeddings=recipe.context,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        attn_layer_period=PERIOD,
        attn_layer_offset=OFFSET,
        num_experts=1,
        num_experts_per_tok=1,
        mamba_d_state=STATE,
        mamba_expand=EXPAND,
        mamba_dt_rank="auto",
        tie_word_embeddings=True,
        **{"num_key_value_heads": recipe.model["num_attention_heads"], **recipe.model},
    )
    return JambaForCausalLM(config)


HYBRID = Kind(
    model=hybrid_model,
    about={"model": "jamba", "attention_every": PERIOD, "first_attention": OFFSET, "state": STATE, "expand": EXPAND},
)
"""A hybrid: attention in every fourth layer and Mamba in the others."""
