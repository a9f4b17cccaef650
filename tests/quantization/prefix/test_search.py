"""Finding a prefix: planted outliers, brute force, and what is said where there is none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from sinkscope.errors import InputError
from sinkscope.model import load
from sinkscope.quantization import Prefix, find_prefix, prefix_cost
from sinkscope.quantization.prefix import search
from tests.families.registry import FAMILIES

BOS, PLANTED = 1, 7


def texts(places: tuple[int, ...] = (6, 13)) -> Tensor:
    ids = torch.randint(20, 90, (5, 24), generator=torch.Generator().manual_seed(0))
    ids[:, 0] = BOS
    ids[:, list(places)] = PLANTED
    return ids


def planted(token: int = PLANTED, size: float = 30.0) -> PreTrainedModel:
    """The first block's feed-forward answers one token's embedding with one huge entry."""
    model = FAMILIES["llama"].build("sdpa")
    block = model.model.layers[0]
    with torch.no_grad():
        block.self_attn.o_proj.weight.zero_()
        table = model.model.embed_tokens.weight
        table[:, 0] = 0  # a dimension for the one token, which has no other
        table[token] = torch.eye(32)[0]
        for map_ in (block.mlp.gate_proj, block.mlp.up_proj):
            map_.weight[0] = size * torch.eye(32)[0]
    return model


def test_planted_outliers_are_found_with_the_bos_behind_them():
    found = find_prefix(planted(), texts(), threshold=50.0, bos=BOS)
    assert found.ids == (PLANTED, BOS)
    first = found.found["sites"][0]
    assert (first["token"], first["site"]) == (PLANTED, "model.layers.0.mlp.down_proj")
    assert first["ratio"] > 50 > first["largest_other"]
    assert max(found.found["outlying_per_text"].values()) == 2
    assert found.found["share_of_texts"] == {PLANTED: 1.0}


def test_what_outlies_in_few_texts_is_left_out():
    ids = texts()
    ids = ids.repeat(5, 1)  # 25 texts, of which two hold the token
    ids[2:][ids[2:] == PLANTED] = 50
    assert find_prefix(planted(), ids, threshold=50.0, bos=BOS).ids == (BOS,)


def test_padding_does_not_count():
    ids = texts()
    mask = torch.ones_like(ids)
    mask[:, 20:] = 0
    ids[:, 20:] = PLANTED
    found = find_prefix(planted(), {"input_ids": ids, "attention_mask": mask}, threshold=50.0, bos=BOS)
    assert max(found.found["outlying_per_text"].values()) == 2


def test_where_nothing_outlies_the_nearest_is_named():
    with pytest.raises(
        InputError, match=r"no token exceeds 1e\+09 medians .* the largest is [\d.]+, token 7 at position"
    ):
        find_prefix(planted(), texts(), threshold=1e9)


def test_the_least_peak_is_that_of_trying_them_all(monkeypatch):
    monkeypatch.setattr(search, "ENOUGH", 100.0)
    model, ids, tried = FAMILIES["llama"].build("sdpa"), texts(()), [5, 8, 30, 61]

    def peak(prefix: list[int]) -> float:
        sizes: list[Tensor] = []
        kept = [
            layer.mlp.down_proj.register_forward_pre_hook(lambda m, args: sizes.append(args[0][:, len(prefix) :].abs()))
            for layer in model.model.layers
        ]
        with torch.no_grad():
            model(torch.cat([torch.tensor([prefix]).expand(5, -1), ids[:, 1:]], 1).long())
        for hook in kept:
            hook.remove()
        return max(float(size.max()) for size in sizes)

    found = find_prefix(model, ids, "peak", candidates=tried, length=2)
    best = min(tried, key=lambda token: peak([token]))
    second = min(tried, key=lambda token: peak([best, token]))
    assert found.ids == (best, second)
    assert found.found["steps"][1]["peak"] == pytest.approx(peak([best, second]), rel=1e-5)
    assert found.found["peak_without"] == pytest.approx(peak([]), rel=1e-5)


def loss_behind(model: PreTrainedModel, prefix: list[int], ids: Tensor) -> Tensor:
    """−log p of each text's tokens from the second on, read behind a prefix in one pass: a mean a text."""
    whole = torch.cat([torch.tensor([prefix]).expand(len(ids), -1).long(), ids], 1)
    with torch.no_grad():
        log_p = model(whole).logits.log_softmax(-1)[:, len(prefix) : -1]
    return -log_p.gather(-1, ids[:, 1:, None])[..., 0].mean(-1)


def test_the_cost_of_a_prefix_is_that_of_what_it_changes_in_full_precision():
    model, ids = FAMILIES["llama"].build("sdpa"), texts(())[:, 1:]
    cost = prefix_cost(model, ids, Prefix.of(model, [8, 61], bos=BOS))
    each = loss_behind(model, [8, 61], ids) - loss_behind(model, [], ids)
    assert cost["nats"] == pytest.approx(float(each.mean()), abs=1e-5)
    assert cost["low"] < cost["nats"] < cost["high"]
    begun = prefix_cost(model, texts(()), Prefix.of(model, [BOS], bos=BOS))
    assert begun["nats"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.slow
def test_a_prefix_that_costs_nothing_is_preferred_and_a_cost_is_not_silent(monkeypatch):
    model, ids, tried = FAMILIES["llama"].build("sdpa"), texts(())[:, 1:], [5, 8, 30, 61]
    monkeypatch.setattr(search, "ENOUGH", 100.0)
    by_peak = find_prefix(model, ids, "peak", candidates=tried, length=1).ids[0]
    costs = {token: prefix_cost(model, ids, Prefix.of(model, [token]))["low"] for token in tried}
    least = min(costs, key=costs.__getitem__)
    assert least != by_peak  # else this shows nothing
    monkeypatch.setattr(search, "TOLERANCE", costs[least])
    assert find_prefix(model, ids, "peak", candidates=tried, length=1).ids == (least,)
    monkeypatch.setattr(search, "TOLERANCE", costs[least] - 1e-6)
    with pytest.warns(UserWarning, match="before anything is rounded"):
        found = find_prefix(model, ids, "peak", candidates=tried, length=1)
    assert found.found["cost"]["low"] == pytest.approx(costs[found.ids[0]])


def test_a_peak_that_nothing_lowers_is_said(monkeypatch):
    monkeypatch.setattr(search, "ENOUGH", 1e-3)
    with pytest.raises(InputError, match="no token of 2 lowers the largest activation"):
        find_prefix(FAMILIES["llama"].build("sdpa"), texts(), "peak", candidates=[5, 6])


@pytest.mark.slow
def test_nanos_bos_is_its_prefix():
    model = load("nano")
    ids = torch.randint(3, 2000, (4, 48), generator=torch.Generator().manual_seed(0))
    ids[:, 0] = 0
    found = find_prefix(model, ids, threshold=20.0)
    assert found.ids == (0,)
    site = max(found.found["sites"], key=lambda site: site["ratio"])
    assert (site["token"], site["position"], site["site"]) == (0, 0, "model.layers.1.mlp.down_proj")
    assert find_prefix(model, ids, "bos").ids == (0,)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"objective": "outlier"}, "did you mean 'outliers'"),
        ({"threshold": 1.0}, "above 1"),
        ({"site": "dwn"}, "did you mean 'down'"),
        ({"length": 0}, "at least 1"),
    ],
)
def test_what_has_no_meaning_is_refused(options, said):
    with pytest.raises(InputError, match=said):
        find_prefix(FAMILIES["llama"].build("sdpa"), texts(), **options)
