"""What rounding costs map by map and token by token, and the fewest of them that give it back."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from transformers import FalconConfig, FalconForCausalLM, GPT2Config, GPT2LMHeadModel

import sinkscope as ss
from sinkscope.checks.modules import GRID
from sinkscope.errors import InputError
from sinkscope.grids import EXACT, Grid
from sinkscope.quantization import QuantizeLinear
from sinkscope.quantization.schemes import scheme_named
from sinkscope.trials import Rescue, rescue, rounding_costs
from tests.families.registry import FAMILIES
from tests.planted.factory import Plant, planted_ids, planted_model


def test_the_estimate_is_what_rounding_a_map_alone_costs() -> None:
    model = ss.load("nano")
    ids = torch.randint(3, 2000, (8, 48), generator=torch.Generator().manual_seed(0))
    trained = [parameter.requires_grad for parameter in model.parameters()]
    costs = rounding_costs(model, ids, QuantizeLinear(Grid(EXACT), GRID), batch_size=3).maps
    assert [parameter.requires_grad for parameter in model.parameters()] == trained
    assert all(parameter.grad is None for parameter in model.parameters())
    assert list(costs.values()) == sorted(costs.values(), reverse=True)
    paths = [*list(costs)[:4], *list(costs)[-4:]]
    exact = []
    with torch.no_grad():
        full = model(input_ids=ids).logits.log_softmax(-1)
        for path in paths:
            others = tuple(name for name in costs if name != path)
            with QuantizeLinear(Grid(EXACT), GRID, skip=("lm_head", *others)).applied(model):
                alone = model(input_ids=ids).logits.log_softmax(-1)
            exact.append(float((full.exp() * (full - alone)).sum(-1).mean()))
    ratio = np.array([costs[path] for path in paths]) / np.array(exact)
    assert ((ratio > 0.5) & (ratio < 2)).all()


def test_tokens_share_out_what_maps_cost() -> None:
    """With one range for a text, credits add up to the costs; with ranges of tokens they are the tokens' own."""
    plant = Plant(sinks=(0, 7), dimension=7, onset=2)
    model, ids = planted_model(plant), planted_ids(plant, 4, 24)
    for over in ("tensor", "token"):
        costs = rounding_costs(model, ids, QuantizeLinear(Grid(EXACT), Grid(8, over, symmetric=True)), batch_size=3)  # type: ignore[arg-type]
        assert costs.tokens.mean(0).sum() == pytest.approx(sum(costs.maps.values()))
        assert (costs.tokens >= 0).all()
    shared = rounding_costs(model, ids, QuantizeLinear(Grid(EXACT), GRID)).tokens
    assert set(np.argsort(-shared.mean(0))[:2].tolist()) == {0, 7}
    assert not rounding_costs(model, ids, QuantizeLinear(Grid(4))).tokens.any()  # weights alone know no tokens


rescuing = sys.modules["sinkscope.trials.rescue"]  # the room's face has the function of this name


@pytest.fixture(scope="module")
def rescued() -> Rescue:
    ids = torch.randint(3, 2000, (16, 40), generator=torch.Generator().manual_seed(0))
    model = ss.load("nano")
    ids[:, 0] = model.config.bos_token_id
    return rescue(model, ids, "w8a8-tensor")


@pytest.mark.slow
def test_one_map_and_one_token_are_what_nanos_sink_costs(rescued: Rescue) -> None:
    """Its massive activation enters one map alone; random maps and random tokens give nothing back."""
    assert rescued.maps == ("model.layers.1.mlp.down_proj",)
    assert rescued.tokens == 1
    assert rescued.positions == (0,)
    table = rescued.tried
    assert (table.loc[~table["random"], "recovered"] > 0.85).all()
    assert (table.loc[table["random"], "recovered"].abs() < 0.15).all()
    assert table.loc[table["random"], "count"].tolist() == [1, 1]
    assert rescued.runs <= 20
    assert "1 of 28 linear maps in 16 bits gives back" in rescued.sentence
    assert json.loads(json.dumps(rescued.to_json()))["maps"] == list(rescued.maps)
    best = rescued.best("maps")
    assert best is not None
    assert (best.count, best.enough, best.word) == (1, True, "free")
    assert best.values.mean() == pytest.approx((1 - best.recovered.value) * rescued.cost.value)


def test_weights_alone_have_no_tokens_and_counts_between_are_tried() -> None:
    ids = torch.randint(3, 2000, (12, 24), generator=torch.Generator().manual_seed(1))
    found = rescue(ss.load("nano"), ids, "w3", 0.5)
    assert found.tokens is None
    assert set(found.tried["what"]) == {"maps"}
    kept = found.tried[~found.tried["random"]].set_index("count")["recovered"]
    assert found.maps is not None
    assert kept[len(found.maps)] >= 0.5 > kept[kept.index < len(found.maps)].max()
    assert set(kept.index) - {1, 2, 4, 8, 16}  # between two of the first counts
    assert len(found.maps) == len(set(found.maps))


def test_fewer_runs_try_every_second_number_first() -> None:
    ids = torch.randint(3, 2000, (12, 24), generator=torch.Generator().manual_seed(1))
    found = rescue(ss.load("nano"), ids, "w3a8-token", 0.5, runs=12)
    assert found.runs <= 12
    tried = found.tried[~found.tried["random"]]
    assert {1, 4, 16} <= set(tried.loc[tried["what"] == "maps", "count"])
    assert not {2, 8} & set(tried["count"])
    with pytest.raises(InputError, match="12 to 20"):
        rescue(ss.load("nano"), ids, "w3", runs=4)


def test_transposed_maps_are_ranked_and_rescued() -> None:
    """GPT-2's maps are `Conv1D`, which store W transposed."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=60, n_positions=32, n_embd=16, n_layer=2, n_head=2)).eval()
    ids = torch.randint(0, 60, (12, 16), generator=torch.Generator().manual_seed(1))
    costs = rounding_costs(model, ids, QuantizeLinear(Grid(3), Grid(8, "token"))).maps
    path = next(iter(costs))
    with torch.no_grad():
        full = model(input_ids=ids).logits.log_softmax(-1)
        with QuantizeLinear(
            Grid(3), Grid(8, "token"), skip=("lm_head", *(each for each in costs if each != path))
        ).applied(model):
            alone = model(input_ids=ids).logits.log_softmax(-1)
    exact = float((full.exp() * (full - alone)).sum(-1).mean())
    assert 0.5 < costs[path] / exact < 2
    found = rescue(model, ids, "w3", 0.5)
    assert found.of_maps == len(costs) == 8
    assert "linear maps in 16 bits give" in found.sentence


def test_without_a_map_that_is_ranked_the_sentence_is_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rescuing, "Conv1D", nn.Identity)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=60, n_positions=32, n_embd=16, n_layer=1, n_head=2)).eval()
    ids = torch.randint(0, 60, (12, 16), generator=torch.Generator().manual_seed(1))
    found = rescue(model, ids, "w3a4-token", 0.5)
    assert found.best("maps") is None
    assert "of a text give" in found.sentence
    assert found.to_json()["maps"] is None


def test_what_cannot_be_rescued_is_refused() -> None:
    model, ids = ss.load("nano"), torch.randint(3, 2000, (12, 24))
    for scheme, share, said in (
        ("kv4-token", 0.9, "rounds the cache"),
        ("llm-int8", 0.9, "needs a scheme of QuantizeLinear"),
        ("w4", 90.0, "above 0 and below 1"),
    ):
        with pytest.raises(InputError, match=said):
            rescue(model, ids, scheme_named(scheme), share)
    with pytest.raises(InputError, match="without padding"):
        rescue(model, {"input_ids": ids, "attention_mask": torch.tensor([[0] * 4 + [1] * 20] * 12)}, "w4")
    with pytest.raises(InputError, match="family 't5': a rescue ranks the maps of one stack"):
        rescue(FAMILIES["t5"].build(), ids % 90, "a8-tensor")


def tiny_falcon() -> nn.Module:
    """Its maps are of a subclass of `nn.Linear` that only multiplies."""
    torch.manual_seed(0)
    return FalconForCausalLM(
        FalconConfig(
            vocab_size=97, bos_token_id=1, eos_token_id=2, hidden_size=32, num_hidden_layers=2, num_attention_heads=4
        )
    ).eval()


@pytest.mark.parametrize(
    ("build", "ranked"), [(tiny_falcon, True), (lambda: FAMILIES["deepseek_v4_sliding"].build(), False)]
)
def test_maps_of_groups_are_left_out_and_subclasses_of_linear_are_not(
    build: Callable[[], nn.Module], ranked: bool
) -> None:
    model, ids = build(), torch.randint(3, 90, (2, 16), generator=torch.Generator().manual_seed(0))
    costs = rounding_costs(model, ids, QuantizeLinear(Grid(4), Grid(4, "token"))).maps
    maps = {path: module for path, module in model.named_modules() if isinstance(module, nn.Linear)}
    own = [path for path, module in maps.items() if type(module) is not nn.Linear]
    assert own
    assert any(costs.get(path, 0.0) > 0 for path in own) == ranked
