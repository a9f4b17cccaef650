"""A prefix beside other choices: it is what reading behind it gives, and stands beside random prefixes."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from sinkscope.errors import InputError
from sinkscope.quantization import (
    FirstTokens,
    Grid,
    Positions,
    Prefix,
    QuantizeLinear,
    Static,
    calibrated,
    study,
)
from sinkscope.quantization.schemes import scheme_named

BOS = 1
EIGHT, FOUR = Grid(8, "tensor", symmetric=True), Grid(4, symmetric=True)


@pytest.fixture
def ids() -> Tensor:
    found = torch.randint(5, 101, (4, 20), generator=torch.Generator().manual_seed(0))
    found[:, 0] = BOS
    return found


def prefix_of(model: LlamaForCausalLM, *ids: int) -> Prefix:
    return Prefix.of(model, ids, bos=BOS)


def kl_of(full: Tensor, other: Tensor) -> Tensor:
    p, q = full.double().log_softmax(-1), other.double().log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1)


@torch.no_grad()
def test_it_is_what_reading_behind_the_prefix_gives(tiny_llama: LlamaForCausalLM, ids: Tensor) -> None:
    prefix = prefix_of(tiny_llama, 7, BOS)
    scheme = scheme_named("w4a8-static")
    found = study(tiny_llama, ids, scheme, {"prefix": prefix, "first": FirstTokens(1)}, controls=2, batch_size=4)
    with prefix.applied(tiny_llama):  # calibrated and read behind it, by hand
        static = calibrated(tiny_llama, ids, EIGHT)
        with QuantizeLinear(FOUR, EIGHT, static=static).applied(tiny_llama):
            rounded = tiny_llama(ids).logits
    kl = kl_of(tiny_llama(ids).logits, rounded)
    left = {(row, 0) for row in range(4)} | {(row, 1) for row in range(4)}  # the BOS, and what "first 2" spares
    from sinkscope.quantization import RandomTokens

    for seed in (0, 1):
        mask = RandomTokens(FirstTokens(1), seed).mask(tiny_llama, {"input_ids": ids})
        left |= {(int(row), int(place)) for row, place in mask.nonzero()}
    for row in range(4):
        keep = [place for place in range(20) if (row, place) not in left]
        assert found.data["kl"].sel(arm="prefix").values[row] == pytest.approx(float(kl[row, keep].mean()), rel=1e-3)
    assert found.data["spared"].sel(arm="prefix").values.tolist() == [2] * 4
    assert found.record["spared"]["prefix"]["ids"] == [7, BOS]


def test_arms_of_a_prefix(tiny_llama: LlamaForCausalLM, ids: Tensor) -> None:
    prefix = prefix_of(tiny_llama, BOS)
    found = study(tiny_llama, ids, "w4a8-tensor", {"prefix": prefix, "four": FirstTokens(4)}, controls=2)
    assert found.choices == ["prefix", "four"]
    assert found.controls("prefix") == ["random 1 for prefix", "random 2 for prefix"]
    assert found.arms[2:4] == ["prefix", "first 1"]
    kl = found.data["kl"]
    assert not np.allclose(kl.sel(arm="random 1 for prefix"), kl.sel(arm="random 2 for prefix"))
    assert (found.data["spared"].sel(arm=["prefix", "first 1", "random 1 for prefix"]) == 1).all()


def test_rounded_activations_alone_lose_the_same_behind_it_as_with_the_token_spared(
    tiny_llama: LlamaForCausalLM, ids: Tensor
) -> None:
    """With whole weights a spared first token has the keys and values of the prefix."""
    inputs = QuantizeLinear(Grid(16), Grid(4, "tensor", symmetric=True))
    found = study(tiny_llama, ids, inputs, {"prefix": prefix_of(tiny_llama, BOS), "one": FirstTokens(1)}, controls=1)
    kl = found.data["kl"]
    assert np.allclose(kl.sel(arm="prefix"), kl.sel(arm="one"), rtol=1e-3)
    assert not np.allclose(kl.sel(arm="prefix"), kl.sel(arm="nothing"), rtol=1e-3)


def test_padding_changes_nothing(tiny_llama: LlamaForCausalLM, ids: Tensor) -> None:
    prefix = prefix_of(tiny_llama, 7, BOS)
    plain = study(tiny_llama, ids, "w4a8-token", prefix, controls=1)
    for left, right in ((5, 0), (0, 5)):
        given = {
            "input_ids": torch.nn.functional.pad(ids, (left, right), value=3),
            "attention_mask": torch.nn.functional.pad(torch.ones_like(ids), (left, right)),
        }
        padded = study(tiny_llama, given, "w4a8-token", prefix, controls=1)
        for name in ("nothing", "spared"):
            assert np.allclose(padded.data["kl"].sel(arm=name), plain.data["kl"].sel(arm=name), rtol=1e-3)


def test_weights_alone_are_studied_behind_a_prefix(tiny_llama: LlamaForCausalLM, ids: Tensor) -> None:
    found = study(tiny_llama, ids, "w3", {"prefix": prefix_of(tiny_llama, BOS)}, controls=2)
    assert found.arms == ["full", "nothing", "prefix", "random 1", "random 2"]
    assert found.first("prefix") is None
    assert found.cost("prefix", by="kl").value != found.cost("nothing", by="kl").value
    with pytest.raises(InputError, match="spare a prefix"):
        study(tiny_llama, ids, "w3", FirstTokens(1), controls=2)


@pytest.mark.parametrize("scheme", ["kv2-token", "kv2-head"])
def test_in_a_cache_it_is_the_rows_own_first_tokens(tiny_llama: LlamaForCausalLM, ids: Tensor, scheme: str) -> None:
    found = study(tiny_llama, ids, scheme, {"prefix": prefix_of(tiny_llama, BOS), "one": Positions((0,))}, controls=1)
    kl = found.data["kl"]
    assert np.array_equal(kl.sel(arm="prefix"), kl.sel(arm="one"))
    with pytest.raises(InputError, match=r"prefix\.before"):
        study(tiny_llama, ids, scheme, prefix_of(tiny_llama, 7, BOS), controls=1)


def test_scales_that_were_frozen_without_the_prefix_are_said(tiny_llama: LlamaForCausalLM, ids: Tensor) -> None:
    prefix, static = prefix_of(tiny_llama, BOS), calibrated(tiny_llama, ids, EIGHT)
    assert isinstance(static, Static)
    with pytest.warns(UserWarning, match="Static was calibrated without the prefix"):
        study(tiny_llama, ids, QuantizeLinear(FOUR, EIGHT, static=static), {"mine": prefix}, controls=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        study(tiny_llama, ids, "w4a8-static", {"mine": prefix}, controls=1)


def test_more_controls_than_there_are_tokens_are_refused(tiny_llama: LlamaForCausalLM, ids: Tensor) -> None:
    few = ids[:1, :4]
    with pytest.raises(InputError, match="4 controls were asked for, but only 3"):
        study(tiny_llama, few, "w4a8-tensor", prefix_of(tiny_llama, BOS), controls=4)
