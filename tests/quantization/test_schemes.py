"""Schemes by name: one grammar, each works on a tiny model, and the headline on nano."""

from __future__ import annotations

import re
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

import sinkscope as ss
from sinkscope.errors import InputError
from sinkscope.quantization import (
    GPTQ,
    SCHEMES,
    DuQuant,
    Grid,
    OutlyingColumns,
    QuantizationScheme,
    RotateInputs,
    SliM,
    linear_maps,
)
from sinkscope.quantization.schemes import scheme_named
from sinkscope.sinks import First, Measured, Outliers
from sinkscope.trials import scheme_trial
from tests.families.registry import FAMILIES


@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_of_the_list_is_its_grammars(name: str) -> None:
    assert scheme_named(name).name == name
    assert scheme_named(name).says == SCHEMES[name].says


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("w17", "from 1 to 16"),
        ("w8a17-token", "from 1 to 16"),
        ("kv2", "kv2-"),
        ("w8-smooth", "unknown scheme"),
        ("w4-gpqt", "did you mean 'w4-gptq'"),
        ("w1-slim", "mixes 0, 1 and 2 bits"),
        ("w16-slim", "from 2 to 15"),
    ],
)
def test_other_names_are_refused(name: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        scheme_named(name)


def made(model: LlamaForCausalLM, name: str, ids: torch.Tensor, protect: First | None = None) -> Any:
    return scheme_named(name).make(model, {"input_ids": ids}, protect)


def test_a_name_makes_the_method_that_it_names(tiny_llama: LlamaForCausalLM) -> None:
    ids = torch.randint(0, 101, (3, 24))
    maps = linear_maps(tiny_llama)
    plain = made(tiny_llama, "w3", ids)
    better = made(tiny_llama, "w3-gptq", ids)
    expected = GPTQ.of(tiny_llama, ids)
    for path, one in maps.items():
        wanted = expected.rounded(path, one.weight.detach(), Grid(3, symmetric=True))
        assert torch.equal(better.rounding.rounded(path, one.weight.detach(), better.weights), wanted)
    assert plain.rounding is None
    assert plain.weights == better.weights
    mixed = made(tiny_llama, "w3-slim", ids)
    widths = {one.weight.shape[-1] for one in maps.values()}
    assert all(width % mixed.weights.group == 0 for width in widths)
    assert isinstance(mixed.rounding, SliM)
    both = made(tiny_llama, "w4a4-token-rotated-gptq", ids)
    assert both.rounding.transform is both.transform  # the second is calibrated under the first
    assert both.transform == RotateInputs(skip=("lm_head",))
    assert made(tiny_llama, "llm-int8-2.5", ids) == OutlyingColumns(2.5)
    assert made(tiny_llama, "llm-int8", ids) == OutlyingColumns(6.0)


def test_weights_leave_protected_tokens_out_of_calibration_alone(tiny_llama: LlamaForCausalLM) -> None:
    ids = torch.randint(0, 101, (3, 24))
    found = made(tiny_llama, "w3-gptq", ids, First(2))
    assert found.protect is None  # served, weights know no tokens
    expected = GPTQ.of(tiny_llama, ids, protect=First(2)).hessians
    with_all = GPTQ.of(tiny_llama, ids).hessians
    for path, hessians in found.rounding.hessians.items():
        assert torch.equal(hessians[0], expected[path][0])
        assert not torch.equal(hessians[0], with_all[path][0])
    found = scheme_trial(tiny_llama, torch.randint(0, 101, (6, 40)), "w3-gptq", First(2), controls=1)
    assert not np.allclose(found.values("first:2"), found.values("w3-gptq"))


def test_maps_are_left_as_they_are_by_name(tiny_llama: LlamaForCausalLM) -> None:
    ids = torch.randint(0, 101, (4, 16))
    every = [path.rpartition(".")[2] for path in linear_maps(tiny_llama)]
    for name in ("w2", "w2-gptq", "w4a4-tensor", "w4a4-static-smooth", "llm-int8"):
        scheme = scheme_named(name, tuple(dict.fromkeys(every)))
        with pytest.warns(UserWarning, match="nothing was rounded"):
            assert (scheme_trial(tiny_llama, ids, scheme, {}, in_sample=True).values(name) == 0).all()
    assert "down_proj" in scheme_named("w2", ("down_proj",)).make(tiny_llama, {"input_ids": ids}, None).skip  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="did you mean 'down_proj'"):
        scheme_trial(tiny_llama, ids, scheme_named("w2", ("dwn_proj",)), {})
    with pytest.raises(InputError, match="no linear map"):
        scheme_named("kv2-token", ("down_proj",))


def test_llm_int8_says_what_it_does_not_quantize(tiny_llama: LlamaForCausalLM) -> None:
    ids = torch.randint(0, 101, (2, 16))
    with pytest.warns(UserWarning, match="nothing was rounded"):
        everything = scheme_trial(tiny_llama, ids, OutlyingColumns(0.0), {})
    assert everything.record["columns_kept"] == 1
    found = scheme_trial(tiny_llama, ids, "llm-int8-0.5", {})
    shares = OutlyingColumns(0.5).kept(tiny_llama, ids)
    assert 0 < found.record["columns_kept"] < found.record["columns_kept_most"] == max(shares.values())
    assert f"{100 * max(shares.values()):.0f} %" in found.verdict


def test_more_bits_cost_less(tiny_llama: LlamaForCausalLM) -> None:
    ids = torch.randint(0, 101, (3, 24))
    costs = []
    for bits in (3, 5, 8):
        name = f"w{bits}a{bits}-tensor"
        costs.append(scheme_trial(tiny_llama, ids, name, {}).mean(name).value)
    assert costs[0] > 5 * costs[1] > 25 * costs[2] > 0
    assert scheme_trial(tiny_llama, ids, "w4", {}).mean("w4").value > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SCHEMES if SCHEMES[name].protects != "nothing"])
def test_every_scheme_runs_with_tokens_protected(tiny_llama: LlamaForCausalLM, name: str) -> None:
    context = 64 if SCHEMES[name].caches else None
    found = scheme_trial(tiny_llama, torch.randint(0, 101, (4, 72)), name, First(1), controls=2, context=context)
    assert found.mean(name).value > 0
    assert found.record["scheme"] == name


def test_a_scheme_of_ones_own(tiny_llama: LlamaForCausalLM) -> None:
    own = QuantizationScheme("mine", "as w4a4-token", SCHEMES["w8a8-token"].make)
    found = scheme_trial(tiny_llama, torch.randint(0, 101, (2, 40)), own, First(1), controls=1)
    assert found.record["scheme_says"] == "as w4a4-token"


@pytest.mark.slow
def test_duquant_by_its_name(tiny_llama: LlamaForCausalLM) -> None:
    assert isinstance(made(tiny_llama, "w4a4-token-duquant", torch.randint(0, 101, (2, 16))).transform, DuQuant)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt_oss", "qwen3_moe", "deepseek_v3", "bert", "t5", "jamba"])
def test_families_are_tried(name: str) -> None:
    if name not in FAMILIES:
        pytest.skip(f"no family '{name}' in the registry")
    family = FAMILIES[name]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="left as they are")  # a Mamba layer reads a weight directly
        found = scheme_trial(family.build("eager"), family.inputs(), "w4a8-tensor", First(1), controls=0)
    assert found.mean("w4a8-tensor").value > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nano", "nano-encoder", "nano-hybrid"])
def test_shipped_models_are_tried(name: str) -> None:
    model = ss.load(name)
    ids = torch.randint(5, 2000, (4, 48), generator=torch.Generator().manual_seed(0))
    ids[:, 0] = 0
    said = pytest.warns(UserWarning, match="dt_proj") if name == "nano-hybrid" else nullcontext()
    with said:
        found = scheme_trial(model, ids, "w8a8-tensor", First(1), controls=0)
    assert found.mean("w8a8-tensor").value > 0
    assert bool(found.data["nats"].notnull().all()) == (name != "nano-encoder")


@pytest.mark.slow
def test_nanos_sink_is_what_a_shared_range_loses_to(nano_text: torch.Tensor) -> None:
    """Inequalities, not digits: the measured sink gives most of the cost back, random tokens nothing.

    Behind a second BOS attention is shared, and a head seldom gives one of the two over epsilon: outliers find both.
    """
    model = ss.load("nano")
    found = scheme_trial(model, nano_text, "w8a8-tensor", Measured(by="row"), controls=2)
    assert found.recovered("measured").value > 0.5
    for name in found.controls("measured"):
        assert abs(found.recovered(name).value) < 0.1
    second = torch.cat([nano_text[:, :64], nano_text[:, :1], nano_text[:, 64:-1]], 1)
    both = Measured(by="row") + Outliers()
    two = scheme_trial(model, second, "w8a8-tensor", both, controls=1)
    first = next(name for name in two.arms if name.startswith("first "))
    assert two.recovered(str(both)).value > 0.8 > 0.4 > two.recovered(first).value
    assert two.difference(first, str(both)).low > 0


@pytest.fixture
def nano_text() -> torch.Tensor:
    from sinkscope.data import build_inputs
    from sinkscope.model import load_tokenizer

    text = Path(re.__file__).parent  # python that stands wherever tests run
    return build_inputs(
        "natural",
        tokenizer=load_tokenizer("nano"),
        vocab_size=2048,
        tokens=128,
        samples=32,
        seed=0,
        text=text / "_parser.py",
    ).input_ids
