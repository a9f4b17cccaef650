"""Which text a model is trained on, and how it is cut."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from sinkscope.data.corpora import FORMS, is_chat, is_corpus, parse_corpus
from sinkscope.data.tokenizer import parse_tokenizer
from sinkscope.data.windows import FixedToken, RandomTokens
from sinkscope.errors import InputError


class DataConfig(BaseModel):
    """The `data` part of a recipe. Unknown fields and values are errors that name them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    corpus: str = Field(default="python", description=f"one of {', '.join(FORMS.values())}")
    mixture: dict[str, float] = Field(
        default_factory=dict,
        description="what training draws its windows from, by weight: domains of the corpus (the folders at its "
        "top) or other corpora. Weights are shares of the tokens seen and sum to 1. Tokenizer and validation remain "
        "the corpus's, so that losses of different mixtures compare",
    )
    tokenizer: str = Field(
        default="bpe:2048",
        description="bpe:SIZE (trained on the corpus), a hub id, a local folder, or the model it belongs to",
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
        description="share of the training windows that training sees, again and again, chosen by split_seed",
    )
    packing: Literal["causal", "intra_document"] = Field(
        default="causal",
        description="intra_document: windows number their documents and no token sees another document",
    )
    document_eos: bool = Field(default=True, description="an EOS after every document")
    labels: Literal["all", "responses"] = Field(
        default="all", description="responses: of conversations only what the assistant says counts in the loss"
    )
    document_bos: bool = Field(default=False, description="a BOS before every document")
    first_tokens: Literal["scored", "unscored"] = Field(
        default="scored",
        description="unscored: the first token of a packed document does not count in the loss, as only the end of "
        "another document could predict it",
    )
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

    @field_validator("mixture")
    @classmethod
    def _shares(cls, mixture: dict[str, float]) -> dict[str, float]:
        for name, weight in mixture.items():
            if not weight > 0 or not math.isfinite(weight):
                raise InputError(f"data.mixture: the weight of '{name}' is {weight:g}; weights are positive numbers")
            if is_corpus(name):
                parse_corpus(name)
        total = math.fsum(mixture.values())
        if mixture and abs(total - 1) > 1e-6:
            raise InputError(f"data.mixture: the weights sum to {total:g}, expected 1 (divide each of them by that)")
        return mixture

    @property
    def corpora(self) -> list[str]:
        """The names of all corpora that training reads, the main one first."""
        return [self.corpus, *(name for name in self.mixture if is_corpus(name))]

    @model_validator(mode="after")
    def _responses_there_are(self) -> DataConfig:
        trained_on = [name if is_corpus(name) else self.corpus for name in self.mixture] + [self.corpus]
        if self.labels == "responses" and not all(map(is_chat, trained_on)):
            plain = next(name for name in trained_on if not is_chat(name))
            raise InputError(
                f"data.labels = responses: '{plain}' has no conversations; choose python:chat or chat:GLOB"
            )
        return self

    @model_validator(mode="after")
    def _limit_has_an_effect(self) -> DataConfig:
        if self.max_characters is not None and not any(name.startswith("hf:") for name in self.corpora):
            raise InputError(f"max_characters limits hf: corpora; '{self.corpus}' is read whole")
        return self
