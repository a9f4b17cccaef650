from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from sinkscope.attention import CATALOG, AttentionSpec, Causal, Full, Sigmoid
from sinkscope.data import DataConfig
from sinkscope.data.tokenizer import train_bpe
from sinkscope.errors import InputError
from sinkscope.model import LabConfig
from sinkscope.training import RECIPES, Recipe, load_recipe
from sinkscope.training.loading import changed
from sinkscope.training.loss import Loss
from sinkscope.training.optimizers import OPTIMIZERS, AdamW
from sinkscope.training.penalty import ActivationPenalty
from sinkscope.training.recipe import DEFAULTS, FIELDS_OF_MODEL
from sinkscope.training.schedule import Constant, Cosine, LinearDecay, Trapezoid

NANO = {"name": "own", "steps": 3, "batch_size": 2, "context": 8, "optimizer": {"lr": 1e-3}}


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_bpe(["some text to learn from, some more text"] * 3, 280)


def test_paper_recipes_have_the_published_sizes() -> None:
    sizes = {name: RECIPES[name].model for name in ("60m", "1b")}
    shape = ("num_hidden_layers", "num_attention_heads", "hidden_size", "intermediate_size", "vocab_size")
    assert [sizes["60m"][field] for field in shape] == [10, 8, 768, 1536, 50432]
    assert [sizes["1b"][field] for field in shape] == [22, 16, 2048, 5632, 50432]
    for name, steps in (("60m", 20_000), ("1b", 40_000)):
        recipe = RECIPES[name]
        assert (recipe.steps, recipe.batch_size, recipe.context) == (steps, 512, 2048)
        assert recipe.optimizer == AdamW(lr=4e-4, weight_decay=0.1, betas=(0.9, 0.95), clip=1.0)
        assert recipe.schedule.warmup == 100


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_survives_json(name: str) -> None:
    stored = json.loads(json.dumps(RECIPES[name].model_dump(mode="json")))
    assert Recipe(**stored) == RECIPES[name]


def test_attention_comes_as_value_dict_or_name() -> None:
    spec = AttentionSpec(normalizer=Sigmoid())
    recipes = [Recipe(**NANO, attention=spelling) for spelling in (spec, spec.to_dict(), "sigmoid")]
    assert {recipe.attention for recipe in recipes} == {CATALOG["sigmoid"]}
    assert len({recipe.hash({}) for recipe in recipes}) == 1
    assert recipes[0].folder({}).startswith("own-sigmoid-")


def test_options_of_an_operation_are_stored_and_told_apart() -> None:
    usual, other = (Recipe(**NANO, attention={"name": "softmax_scaled", "alpha": alpha}) for alpha in (0.1, 0.2))
    assert usual.model_dump(mode="json")["attention"] == "softmax_scaled"
    assert other.model_dump(mode="json")["attention"] == {"name": "softmax_scaled", "alpha": 0.2}
    assert Recipe(**json.loads(json.dumps(other.model_dump(mode="json")))) == other
    assert usual.hash({}) == Recipe(**NANO, attention="softmax_scaled").hash({}) != other.hash({})
    assert other.folder({}) == f"own-softmax_scaled-alpha=0.2-{other.hash({})}"
    own = Recipe(**NANO, attention={"slots": [{"kind": "zero"}, {"kind": "key"}]})
    assert own.folder({}).startswith("own-custom-")
    assert Recipe(**json.loads(json.dumps(own.model_dump(mode="json")))) == own


def test_one_meaning_has_one_hash() -> None:
    spelled = Recipe(
        **{**NANO, "optimizer": {"name": "adamw", "lr": "1e-3", "betas": [0.9, 0.95], "clip": 1}},
        attention="softmax",
        model={"hidden_size": 128, "rope_theta": 10000, "num_key_value_heads": 4},
        schedule={"kind": "constant", "warmup": 100},
    )
    assert spelled.hash({"tokens": "abc"}) == Recipe(**NANO).hash({"tokens": "abc"})


@pytest.mark.parametrize(
    "change",
    [
        "name=other",
        "save_every=7",
        "eval_every=3",
        "log_every=1",
        "micro_batch=8",
        "compile=true",
        "data.validation_share=0.1",
    ],
)
def test_what_decides_no_number_is_not_in_the_hash(change: str) -> None:
    assert load_recipe("nano", [change]).hash({}) == RECIPES["nano"].hash({})


@pytest.mark.parametrize(
    "change",
    [
        "steps=7",
        "seed=1",
        "precision=bf16",
        "attention=sigmoid",
        "optimizer.lr=1e-3",
        "optimizer.decay_norms=false",
        "optimizer.clip=null",
        "schedule.kind=cosine",
        "model.rms_norm_eps=1e-6",
        "model.vocab_size=3000",
        "data.bos=none",
        "data.document_eos=false",
        "data.labels=responses",
        "schedule.kind=linear",
        "loss.window=16",
        "loss.activation_penalty.strength=0.1",
        "model.restart_positions=true",
        "validation_windows=32",
    ],
)
def test_what_decides_a_number_is_in_the_hash(change: str) -> None:
    needed = ["data.corpus=python:chat"] if "responses" in change else []
    assert load_recipe("nano", [change, *needed]).hash({}) != RECIPES["nano"].hash({})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("loss.prefix=128", "loss.prefix = 128 leaves nothing to predict in a context of 128"),
        ("data.interventions=[{kind: random_tokens, start: 100, stop: 129}]", "position 128 lies outside a context"),
        ("data.interventions=[{kind: fixed_token, position: 128, token: 0}]", "position 128 lies outside a context"),
        ("data.mixture={torch: 0.3, numpy: 0.3}", "the weights sum to 0.6, expected 1"),
        ("data.labels=responses", "'python' has no conversations"),
        ("loss.window=0", "loss.window' = 0"),
        ("schedule.kind=linea", "did you mean 'linear'"),
    ],
)
def test_parts_that_do_not_fit_are_told_when_the_recipe_is_built(change: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason.replace("(", r"\(")):
        load_recipe("nano", [change])


def test_the_text_is_in_the_hash_but_not_its_name_and_its_tools() -> None:
    nano = RECIPES["nano"]
    fingerprint = {"corpus": "a", "versions": {"tokenizers": "1"}, "text_sha256": "1"}
    assert nano.hash(fingerprint) == nano.hash(fingerprint | {"corpus": "b", "versions": {}})
    assert nano.hash(fingerprint) != nano.hash(fingerprint | {"text_sha256": "2"})


def test_the_model_takes_its_vocabulary_from_the_tokenizer(tokenizer: PreTrainedTokenizerFast) -> None:
    config = Recipe(**NANO, attention="k_bias").lab_config(tokenizer)
    assert config.vocab_size == len(tokenizer)
    assert config.max_position_embeddings == 8
    assert config.attention_name == "k_bias"
    assert (config.bos_token_id, config.eos_token_id) == (tokenizer.bos_token_id, tokenizer.eos_token_id)


def test_a_vocabulary_may_be_padded_but_not_cut(tokenizer: PreTrainedTokenizerFast) -> None:
    assert Recipe(**NANO, model={"vocab_size": 512}).lab_config(tokenizer).vocab_size == 512
    with pytest.raises(InputError, match=r"'model\.vocab_size' = 9 is less than the tokenizer's \d+ tokens"):
        Recipe(**NANO, model={"vocab_size": 9}).lab_config(tokenizer)


def test_a_recipe_cannot_be_changed(tiny: Callable[..., Recipe]) -> None:
    with pytest.raises(ValueError, match="frozen"):
        tiny().steps = 3


def test_defaults_are_left_out_of_the_hash_and_may_not_change_unnoticed() -> None:
    """The hash says nothing of a default, so a default that changes must raise `DEFAULTS`, and this digest with it."""
    nano = load_recipe("nano")
    assert nano.decisive()["optimizer"] == {"name": "adamw", "lr": 4e-3}
    assert nano.decisive()["loss"] == {}
    assert "position" not in nano.decisive()["model"]
    parts = [*OPTIMIZERS.values(), Constant, Cosine, LinearDecay, Trapezoid, Loss, ActivationPenalty, DataConfig]
    defaults = {
        f"{part.__name__}.{name}": str(field.get_default(call_default_factory=True))
        for part in parts
        for name, field in part.model_fields.items()
    }
    config = LabConfig()
    defaults |= {f"LabConfig.{name}": str(getattr(config, name)) for name in FIELDS_OF_MODEL}
    known = json.loads((Path(__file__).parent / "defaults.json").read_text())
    assert known.pop("DEFAULTS") == DEFAULTS
    assert {name: defaults.get(name) for name in known} == known  # new fields are free to come


def test_recipes_share_a_model_s_configuration_only_where_they_say_the_same_of_it() -> None:
    usual, gelu, longer = (changed("nano", changes) for changes in ({}, {"model.ffn": "gelu"}, {"context": 256}))
    assert "ffn" not in usual.decisive()["model"]
    assert gelu.decisive()["model"]["ffn"] == "gelu"
    assert usual._resolved().config.max_position_embeddings == 128
    assert longer._resolved().config.max_position_embeddings == 256
    assert changed("nano", {"optimizer.lr": 1e-3})._resolved() is usual._resolved()


@pytest.mark.parametrize("mask", [Full(), Full() & Causal(), Full() | Causal()])
def test_a_mask_that_hides_nothing_is_the_run_without_it(mask):
    plain, spelled = changed("nano", {}), changed("nano", {"attention": AttentionSpec(mask=mask)})
    assert spelled.hash({}) == plain.hash({})
    assert spelled.folder({}) == plain.folder({})
    assert changed("nano", {"attention": ["softmax", AttentionSpec(mask=mask)]}).folder({}) == plain.folder({})
