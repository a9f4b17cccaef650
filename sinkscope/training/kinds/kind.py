"""A kind of model as a value: how it is built, what it reads, and what it learns from that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from sinkscope.data import PreparedData, encode_data, prepare, with_mask
from sinkscope.training.recipe import Recipe
from sinkscope.training.start import lab_model, start_fingerprint

Metrics = Callable[[PreTrainedModel], Mapping[str, float]]
Examples = Callable[[Dataset, PreTrainedTokenizerBase, int], Dataset]


def unchanged(windows: Dataset, tokenizer: PreTrainedTokenizerBase, seed: int) -> Dataset:
    """Windows hold a causal model's sequence and labels already."""
    return windows


def prepared(recipe: Recipe) -> PreparedData:
    """The corpus in windows of the recipe's context; the weights that the recipe starts from join its fingerprint.

    Raises `InputError` for a masked objective where the tokenizer has no mask token.
    """
    data = prepare(recipe.data, recipe.context, recipe.seed, number_documents=recipe.numbers_documents)
    fingerprint = data.fingerprint | start_fingerprint(recipe, data.tokenizer)
    tokenizer = data.tokenizer if recipe.loss.masked is None else with_mask(data.tokenizer)
    return replace(data, fingerprint=fingerprint, tokenizer=tokenizer)


def fingerprint(recipe: Recipe) -> dict[str, Any]:
    """What `prepared` says about text, tokens and initial weights, without cutting windows."""
    found = encode_data(recipe.data)
    return found.fingerprint(recipe.data) | start_fingerprint(recipe, found.whole.tokenizer)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What a session of training needs to know about the model's kind.

    `data` reads a recipe's corpus; `sequences` turns its windows into what the model reads, and `objective` turns those
    into what it is trained on. Both get the tokenizer and a seed. They may depend on an item's number, never on earlier
    items, so that a resumed run sees what an uninterrupted one sees. The sink is logged on the first `sink_tokens`
    tokens of `sequences`, together with what `metrics` measures on the model (names start with `task/`). `about` joins
    the run's fingerprint and so its hash.
    """

    model: Callable[[Recipe, PreTrainedTokenizerBase], PreTrainedModel]
    data: Callable[[Recipe], PreparedData] = prepared
    sequences: Examples = unchanged
    objective: Examples = unchanged
    sink_tokens: int = 64
    metrics: Metrics = lambda model: {}
    about: dict[str, Any]


LAB = Kind(model=lab_model, about={})
