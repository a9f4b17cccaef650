"""What is kept of heads at every evaluation: of planted heads, of heads that match prefixes, and in a run's log."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
import torch

from sinkscope.measurement import AttentionReceived, HiddenNorms, Measurement, measure
from sinkscope.model import LabConfig, LabForCausalLM
from sinkscope.training import Recipe, Run
from sinkscope.training.run.heads import OBSERVERS, PREFIX, HeadNumbers
from tests.planted.factory import planted_ids, planted_model
from tests.planted.plant import Plant

PER_HEAD = ("alpha/first", "alpha", "queries_above", "value_norm", "key_norm", "cosine")
WITH_OTHERS = ("value_norm", "key_norm", "cosine", "hidden_norm")


def numbers(model: LabForCausalLM, ids: torch.Tensor) -> tuple[dict, Measurement]:
    seen = measure(model, ids, [AttentionReceived("all"), HiddenNorms(), *OBSERVERS])
    kept = HeadNumbers.build(ids[:, 0], ids.shape[1], model.config.vocab_size)
    return kept(model, seen, 0.3), seen


def test_planted_heads_are_told_from_the_others() -> None:
    plant = Plant(heads=((1, 0), (2, 3)))
    found, seen = numbers(planted_model(plant), planted_ids(plant, samples=5, tokens=70))
    heads = {name: np.array(found[name], dtype=float).reshape(4, 4) for name in PER_HEAD}
    sinks = np.zeros((4, 4), dtype=bool)
    sinks[1, 0] = sinks[2, 3] = True
    assert found["position"] == [0]
    assert (heads["alpha"] == heads["alpha/first"]).all()
    assert ((heads["alpha"] > 0.3) == sinks).all()
    assert heads["queries_above"][sinks].min() > 0.98
    assert ((heads["queries_above"] > 0.5) == sinks).all()
    others = {name: np.array(found[f"{name}/others"], dtype=float) for name in WITH_OTHERS}
    assert (heads["cosine"][sinks] > others["cosine"].reshape(4, 4)[sinks] + 0.3).all()
    assert (heads["value_norm"][sinks] < 0.1 * others["value_norm"].reshape(4, 4)[sinks]).all()
    hidden = np.array(found["hidden_norm"], dtype=float)
    assert len(hidden) == 5
    assert (hidden / others["hidden_norm"]).max() == pytest.approx(float(seen.hidden_norm_ratio().max()), rel=0.02)


def test_the_numbers_are_means_over_samples_of_the_measurement() -> None:
    plant = Plant(heads=((1, 0),))
    found, seen = numbers(planted_model(plant), planted_ids(plant, samples=3, tokens=40))
    for name, variable in (("alpha", "attention_received"), ("key_norm", "key_norm"), ("cosine", "cos_query_key")):
        values = seen.data[variable].transpose("sample", "layer", "head", "position").values
        np.testing.assert_allclose(found[name], values[..., 0].mean(0).ravel(), rtol=1e-3)
    elsewhere = seen.data["key_norm"].transpose("sample", "layer", "head", "position").values[..., 1:]
    np.testing.assert_allclose(found["key_norm/others"], elsewhere.mean((0, 3)).ravel(), rtol=1e-3)


def test_a_head_that_looks_behind_its_token_s_last_place_is_found() -> None:
    """A bias by distance gives all weight to the token 30 before: the one behind the last occurrence, of 31."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 97, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    only = {"kind": "and", "first": {"kind": "causal"}, "second": {"kind": "window", "size": 31}}
    model = LabForCausalLM(LabConfig(**sizes, position="none", attention={"mask": only})).eval()
    found, _ = numbers(model, planted_ids(tokens=64))
    assert len(found[PREFIX]) == 4
    assert all(0.5 / 31 < weight < 2 / 31 for weight in found[PREFIX])  # each of 31 keys has about as much
    narrow = {"kind": "and", "first": {"kind": "causal"}, "second": {"kind": "window", "size": 30}}
    blind = LabForCausalLM(LabConfig(**sizes, position="none", attention={"mask": narrow})).eval()
    assert numbers(blind, planted_ids(tokens=64))[0][PREFIX] == [0.0] * 4


def test_sink_tokens_and_slots_have_their_numbers() -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 97, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LabForCausalLM(LabConfig(**sizes, sink_tokens=1, attention="k_bias")).eval()
    found, seen = numbers(model, planted_ids(tokens=40))
    np.testing.assert_allclose(found["slot"], seen.data["slot_received"].mean("sample").values.ravel(), rtol=1e-3)
    assert all(weight > 0 for weight in found[PREFIX])


def test_activations_that_are_no_numbers_are_unknown() -> None:
    model = planted_model(Plant())
    with torch.no_grad():
        for projection in (model.model.layers[0].self_attn.q_proj, model.model.layers[0].self_attn.k_proj):
            projection.weight.fill_(1e37)  # products overflow
    with pytest.warns(UserWarning, match="NaN or infinite"):
        found, _ = numbers(model, planted_ids(tokens=40))
    assert found["alpha"][-1] is None
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_windows_of_four_tokens_have_no_room_for_a_repetition() -> None:
    assert HeadNumbers.build(torch.zeros(3, dtype=torch.long), 4, 97).random is None
    random = HeadNumbers.build(torch.zeros(30, dtype=torch.long), 16, 97).random
    assert random is not None
    assert random.shape == (16, 15)
    assert torch.equal(random[:, 1:8], random[:, 8:])


def test_every_evaluation_of_a_run_keeps_them(undisturbed: Run, tiny: Callable[..., Recipe]) -> None:
    recipe = tiny()
    evaluations = [0, *range(recipe.eval_every, recipe.steps + 1, recipe.eval_every)]
    assert list(undisturbed.heads) == evaluations
    for kept in undisturbed.heads.values():
        assert {len(kept[name]) for name in PER_HEAD} == {4}
        assert len(kept["hidden_norm"]) == 3
    assert "heads" not in undisturbed.record["results"]
