"""Which text a model is trained on, and how it is cut."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from sinkscope.data.corpora import parse_corpus
from sinkscope.data.interventions import FixedToken, RandomTokens
from sinkscope.data.tokenizer import parse_tokenizer
from sinkscope.errors import InputError


class DataConfig(BaseModel):
    """The `data` part of a recipe. Unknown fields and values are errors that name them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    corpus: str = Field(default="python", description="python, text:GLOB or hf:NAME[:CONFIG[:SPLIT]]")
    tokenizer: str = Field(
        default="bpe:2048", description="bpe:SIZE (trained on the corpus), a hub id or a local folder"
    )
    bos: Literal["fixed", "none"] = Field(default="fixed", description="fixed: a BOS at position 0 of every window")
    validation_share: float = Field(default=0.02, gt=0, lt=1, description="share of the documents kept for validation")
    split_seed: int = Field(
        default=0,
        description="decides which documents those are; apart from the run's seed, so that runs with different seeds "
        "share their text, their tokenizer and the cache, and their validation losses compare",
    )
    max_characters: int | None = Field(
        default=None, gt=0, description="limit of an hf: corpus; 100 million unless given"
    )
    train_share: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="share of the training windows that training sees, again and again (D1), chosen by split_seed",
    )
    packing: Literal["causal", "intra_document"] = Field(
        default="causal",
        description="intra_document: windows number their documents and no token sees another document (K2)",
    )
    document_bos: bool = Field(default=False, description="a BOS before every document, beside the EOS after it (K2)")
    interventions: tuple[Annotated[FixedToken | RandomTokens, Field(discriminator="kind")], ...] = Field(
        default=(), description="tokens written over those of every window, in training and in validation"
    )

    @field_validator("corpus")
    @classmethod
    def _known_corpus(cls, name: str) -> str:
        parse_corpus(name)
        return name

    @field_validator("tokenizer")
    @classmethod
    def _known_tokenizer(cls, name: str) -> str:
        parse_tokenizer(name)
        return name

    @model_validator(mode="after")
    def _limit_has_an_effect(self) -> DataConfig:
        if self.max_characters is not None and not self.corpus.startswith("hf:"):
            raise InputError(f"max_characters limits hf: corpora; '{self.corpus}' is read whole")
        return self
