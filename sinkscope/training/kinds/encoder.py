"""A bidirectional encoder: transformers' `BertForMaskedLM`, trained to fill in masked tokens [X6]."""

from __future__ import annotations

from dataclasses import replace

from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerBase

from sinkscope.data import PreparedData, prepare
from sinkscope.data.tokenizer import as_encoder
from sinkscope.training.kinds.kind import Kind
from sinkscope.training.kinds.masking import CHOSEN, FRAME, MASKED, RANDOM, Framed, Masked
from sinkscope.training.recipe import Recipe


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
