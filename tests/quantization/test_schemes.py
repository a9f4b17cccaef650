"""Schemes by name: one grammar, each works on a tiny model, and the headline on nano."""

from __future__ import annotations

import re
import warnings
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

import sinkscope as ss
from sinkscope.errors import InputError
from sinkscope.quantization import SCHEMES, FirstTokens, MeasuredSinks, QuantizationScheme, study
from sinkscope.quantization.schemes import scheme_named
from tests.families.registry import FAMILIES


@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_of_the_list_is_its_grammars(name: str) -> None:
    assert scheme_named(name).name == name
    assert scheme_named(name).says == SCHEMES[name].says


@pytest.mark.parametrize(("name", "said"), [("w17", "from 1 to 16"), ("kv2", "kv2-"), ("w8-smooth", "unknown scheme")])
def test_other_names_are_refused(name: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        scheme_named(name)


def test_more_bits_cost_less(tiny_llama: LlamaForCausalLM) -> None:
    ids = torch.randint(0, 101, (3, 24))
    costs = [study(tiny_llama, ids, f"w{bits}a{bits}-tensor", {}).cost("nothing", by="kl").value for bits in (3, 5, 8)]
    assert costs[0] > 5 * costs[1] > 25 * costs[2] > 0
    assert study(tiny_llama, ids, "w4", {}).cost("nothing", by="kl").value > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SCHEMES if name != "w4"])
def test_every_scheme_runs_with_tokens_spared(tiny_llama: LlamaForCausalLM, name: str) -> None:
    found = study(tiny_llama, torch.randint(0, 101, (2, 72)), name, FirstTokens(1), controls=2, context=64)
    assert found.cost("nothing", by="kl").value > 0
    assert found.record["scheme"] == name


def test_a_scheme_of_ones_own(tiny_llama: LlamaForCausalLM) -> None:
    own = QuantizationScheme("mine", "as w4a4-token", SCHEMES["w8a8-token"].make)
    found = study(tiny_llama, torch.randint(0, 101, (2, 16)), own, FirstTokens(1), controls=1)
    assert found.record["scheme_says"] == "as w4a4-token"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt_oss", "qwen3_moe", "deepseek_v3", "bert", "t5", "jamba"])
def test_families_are_studied(name: str) -> None:
    if name not in FAMILIES:
        pytest.skip(f"no family '{name}' in the registry")
    family = FAMILIES[name]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="left as they are")  # a Mamba layer reads a weight directly
        found = study(family.build("eager"), family.inputs(), "w4a8-tensor", FirstTokens(1), controls=2)
    assert found.cost("nothing", by="kl").value > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nano", "nano-encoder", "nano-hybrid"])
def test_shipped_models_are_studied(name: str) -> None:
    model = ss.load(name)
    ids = torch.randint(5, 2000, (4, 48), generator=torch.Generator().manual_seed(0))
    ids[:, 0] = 0
    said = pytest.warns(UserWarning, match="dt_proj") if name == "nano-hybrid" else nullcontext()
    with said:
        found = study(model, ids, "w8a8-tensor", FirstTokens(1), controls=2)
    assert found.cost("nothing", by="kl").value > 0
    assert ("loss" in found.data) == (name != "nano-encoder")


@pytest.mark.slow
def test_nanos_sink_is_what_a_shared_range_loses_to(nano_text: torch.Tensor) -> None:
    """Inequalities, not digits: the measured sink gives most of the cost back, random tokens nothing."""
    model = ss.load("nano")
    found = study(model, nano_text, "w8a8-tensor", MeasuredSinks(), controls=2, batch_size=16)
    assert found.recovered("spared").value > 0.5
    for name in found.controls("spared"):
        assert abs(found.recovered(name).value) < 0.1
    second = torch.cat([nano_text[:, :64], nano_text[:, :1], nano_text[:, 64:-1]], 1)
    two = study(model, second, "w8a8-tensor", MeasuredSinks(), controls=1, batch_size=16)
    assert two.recovered("spared").value > 0.5 > 0.3 > two.recovered(two.first("spared")).value
    assert two.beats("spared", two.first("spared")).low > 0


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
