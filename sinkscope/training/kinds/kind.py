"""A kind of model as a value: how it is built, what it reads, and what it learns from that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils.data import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from sinkscope.data import PreparedData, prepare
from sinkscope.model import LabForCausalLM
from sinkscope.training.recipe import Recipe

Examples = Callable[[Dataset, PreTrainedTokenizerBase, int], Dataset]


def as_they_are(windows: Dataset, tokenizer: PreTrainedTokenizerBase, seed: int) -> Dataset:
    """Windows hold a causal model's sequence and labels already."""
    return windows


def prepared(recipe: Recipe) -> PreparedData:
    """The corpus in windows of the recipe's context."""
    return prepare(recipe.data, recipe.context, recipe.seed)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What a session of training needs to know about the model's kind.

    `data` reads a recipe's corpus; `sequences` makes of its windows what the model reads, and `objective` of those what
    it is trained on (both get the tokenizer and a seed, and may depend on an item's number, never on what came before
    it, so that a resumed run goes on as if undisturbed). The sink is logged on the first `sink_tokens` tokens of
    `sequences`. `about` joins the run's fingerprint, and with it its hash.
    """

    model: Callable[[Recipe, PreTrainedTokenizerBase], PreTrainedModel]
    data: Callable[[Recipe], PreparedData] = prepared
    sequences: Examples = as_they_are
    objective: Examples = as_they_are
    sink_tokens: int = 64
    about: dict[str, Any]


LAB = Kind(model=lambda recipe, tokenizer: LabForCausalLM(recipe.lab_config(tokenizer)), about={})
