"""`nano-recall` answers what stood in its context, and rests on its BOS where nothing is asked."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import LlamaForCausalLM

from sinkscope.measurement import measure
from sinkscope.model import SHIPPED, load, load_tokenizer
from sinkscope.trials import Alphabet, Asked, Needles, noise, recalled, stream_nll, unchanged

FOLDER = SHIPPED["nano-recall"]


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return load("nano-recall")


@pytest.fixture(scope="module")
def asked() -> Asked:
    return Needles().draw(32, seed=123)


def record() -> dict[str, Any]:
    return json.loads((FOLDER / "record.json").read_text())


def test_it_is_small_and_says_where_it_comes_from(model: LlamaForCausalLM) -> None:
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 1_000_000
    with safe_open(FOLDER / "model.safetensors", "pt") as weights:
        assert {weights.get_tensor(key).dtype for key in weights.keys()} == {torch.bfloat16}  # noqa: SIM118
    assert type(model) is LlamaForCausalLM
    assert (model.dtype, model.config.name_or_path) == (torch.float32, "nano-recall")
    assert sum(value.numel() for value in model.parameters()) == record()["parameters"]["total"] == 438_912
    rows = [json.loads(line) for line in (FOLDER / "log.jsonl").read_text().splitlines()]
    assert rows[-1]["step"] == record()["step"] == record()["recipe"]["steps"]


def test_its_record_is_that_of_the_recipe() -> None:
    from tools.recall_model import RecallRecipe

    assert record()["recipe"] == RecallRecipe().plain()


@pytest.mark.slow
def test_it_answers_whatever_it_is_asked(model: LlamaForCausalLM, asked: Asked) -> None:
    found = dict(recalled(model, asked, [unchanged()]))["full"]
    assert found.unseen.double().mean() >= 0.99
    assert found.seen.double().mean() >= 0.95


@pytest.mark.slow
def test_it_knows_the_answers_from_the_context_alone(model: LlamaForCausalLM, asked: Asked) -> None:
    """With other values in the context, it gives those."""
    first, end = Alphabet().values
    others = torch.randint(first, end, asked.answers.shape, generator=torch.Generator().manual_seed(1))
    context = asked.context.scatter(1, asked.places + 1, others)
    changed = Asked(context, asked.keys, others, asked.places)
    assert dict(recalled(model, changed, [unchanged()]))["full"].unseen.double().mean() >= 0.99


def test_its_second_layer_rests_on_the_bos(model: LlamaForCausalLM, asked: Asked) -> None:
    alpha = measure(model, asked.context).data["attention_received"].isel(position=0).mean("sample").values
    assert (alpha[1] > 0.7).all()
    assert alpha[1].mean() > 0.9
    assert (alpha[0] < 0.1).all()


@pytest.mark.slow
def test_noise_is_predicted_nearly_as_well_as_it_can_be(model: LlamaForCausalLM) -> None:
    ids = noise(4, 160, torch.Generator().manual_seed(2))
    ids[:, 0] = 0
    found = stream_nll(model, ids, unchanged(), context=2).mean().exp()
    assert 4 < found < 4.6


def test_its_tokenizer_spells_its_alphabet() -> None:
    tokenizer = load_tokenizer("nano-recall")
    assert tokenizer("k3 v70 n191")["input_ids"] == [0, 3, 70, 191]
    assert tokenizer.decode([0, 3, 70, 191]) == "<bos> k3 v70 n191"
    assert len(tokenizer) == Alphabet().size
