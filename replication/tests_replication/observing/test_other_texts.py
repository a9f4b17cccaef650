"""Readings on texts of another form, against the same text put together by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sinkscope.data import DataConfig
from sinkscope.data.corpora.conversations import chat_template
from sinkscope.data.measuring_inputs import natural_windows
from sinkscope.experiments.readings import at_first, mean_loss
from sinkscope.model import load, load_tokenizer
from sinkscope.training import RECIPES
from sinkscope_replication.observing.other_texts import PER_DOMAIN, other_texts
from sinkscope_replication.questions import QUESTIONS


@pytest.fixture(scope="module")
def nano() -> PreTrainedModel:
    return load("nano")


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return load_tokenizer("nano")


@pytest.fixture
def library(tmp_path: Path) -> DataConfig:
    """A corpus with the domains law and mail, and one whose documents are too short to be read."""
    for domain, words in (("law", 90), ("mail", 90), ("short", 3)):
        (tmp_path / domain).mkdir()
        for number in range(12):
            (tmp_path / domain / f"{number}.txt").write_text(f"{domain} {number} of it; " * words)
    return DataConfig(corpus=f"text:{tmp_path}/*/*.txt", validation_share=0.5)


@pytest.mark.slow
def test_a_bos_goes_before_windows_that_had_none(nano, tokenizer, library: DataConfig) -> None:
    windows = torch.randint(3, 2000, (4, 80))
    found = dict(other_texts(nano, tokenizer, library.model_copy(update={"bos": "none"}), windows))
    behind = torch.cat([torch.zeros(4, 1, dtype=torch.long), windows[:, :79]], 1)
    assert found.items() >= dict(at_first("with_bos", nano, behind[:, :64])).items()
    assert found["loss/with_bos"] == mean_loss(nano, behind)
    assert "sink_0/with_bos" not in dict(other_texts(nano, tokenizer, library, windows))


@pytest.mark.slow
@pytest.mark.parametrize(("context", "behind_bos"), [(80, 63), (40, 39)])
def test_every_domain_is_read_on_its_own_text(nano, tokenizer, library: DataConfig, context, behind_bos) -> None:
    """On 64 tokens; a model that was trained on shorter windows may have no more positions than these."""
    found = dict(other_texts(nano, tokenizer, library, torch.randint(3, 2000, (4, context))))
    kinds = ("sink_0", "sink_mass")
    assert set(found) == {f"{kind}/domain={domain}" for domain in ("law", "mail") for kind in kinds}
    text = natural_windows(tokenizer, behind_bos, PER_DOMAIN, 0, corpus=library, domain="mail").input_ids
    with_bos = torch.cat([torch.zeros(len(text), 1, dtype=torch.long), text], 1)
    assert found.items() >= dict(at_first("domain=mail", nano, with_bos)).items()


@pytest.mark.release
def test_a_model_of_conversations_is_read_on_plain_text_too(nano, tokenizer) -> None:
    tokenizer.chat_template = chat_template("<bos>")
    found = dict(other_texts(nano, tokenizer, RECIPES["nano-sft"].data, torch.randint(3, 2000, (4, 80))))
    assert set(found) == {
        *(
            f"{kind}/{name}"
            for kind in ("sink_0", "sink_mass")
            for name in ("plain_text", "as_chat", "document", "document_after_bos")
        ),
        "loss/plain_text",
    }
    assert found["sink_0/plain_text"] > 5  # the shipped model has its sink on the BOS
    assert found["loss/plain_text"] < 3.5
    assert found["sink_0/document_after_bos"] > found["sink_0/document"] + 3


def test_tuning_is_the_recipe_nano_sft() -> None:
    made = QUESTIONS["tuning"].recipes("nano", [0])
    assert made["tuned", 0].hash({}) == RECIPES["nano-sft"].hash({})
    assert made["before", 0].steps == 1


def test_amounts_and_contexts_are_compared_at_equal_tokens() -> None:
    for name in ("data-amount", "context", "short-documents"):
        recipes = QUESTIONS[name].recipes("nano", [0]).values()
        assert len({recipe.steps * recipe.batch_size * recipe.context for recipe in recipes}) == 1
