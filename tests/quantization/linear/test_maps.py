"""Linear maps of models: their weights as (…, out, in), which are left out, and that they are put back."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import torch
from torch import Tensor

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.model import LabConfig, LabForCausalLM
from sinkscope.quantization import Grid, QuantizeLinear, left_out, linear_maps
from tests.quantization.linear.conftest import a_model, hooks, inputs_of, logits, parameters

KINDS = ["gpt2", "phi3", "deepseek_v3", "gpt_oss", "bert"]
EXPERTS = ["qwen3_moe", "gpt_oss", "deepseek_v3", "phimoe"]


@pytest.mark.parametrize("name", KINDS)
def test_what_comes_out_is_the_weight_times_what_goes_in(name: str) -> None:
    model, entered, left = a_model(name), {}, {}
    maps = {path: one for path, one in linear_maps(model).items() if not one.stacked}
    with ExitStack() as stack:
        for path, one in maps.items():
            one.edit_input(lambda x, routing, path=path: entered.setdefault(path, x), stack)

            def keep(module: object, args: object, output: Tensor, path: str = path) -> None:
                left[path] = output

            stack.callback(one.module.register_forward_hook(keep).remove)
        logits(model, **inputs_of(name))
    assert maps.keys() == entered.keys() == left.keys()
    for path, one in maps.items():
        bias = getattr(one.module, "bias", None)
        expected = entered[path] @ one.weight.mT + (0 if bias is None else bias)
        torch.testing.assert_close(left[path], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", EXPERTS)
def test_experts_in_two_steps_are_the_experts(name: str) -> None:
    model, inputs = a_model(name), inputs_of(name)
    model.requires_grad_(True)
    own = [one for one in linear_maps(model).values() if one.stacked]
    found = []
    for changed in (False, True):
        model.zero_grad()
        with ExitStack() as stack:
            for one in own if changed else ():
                one.edit_input(lambda x, routing: x, stack)
            output = model(**inputs).logits
            output.square().mean().backward()
        grads = [getattr(one.module, one.parameter).grad.clone() for one in own]
        found.append((output.detach(), grads))
    assert len(own) in (2, 4)
    assert all("forward" not in vars(one.module) for one in own)
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-4, atol=1e-6)
    for grad, expected in zip(found[1][1], found[0][1], strict=True):
        torch.testing.assert_close(grad, expected, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss"])
def test_stacked_weights_are_expert_out_in(name: str) -> None:
    model = a_model(name)
    width, inner = model.config.hidden_size, linear_maps(model)[f"{_experts(name)}.down_proj"].weight.shape[-1]
    first = linear_maps(model)[f"{_experts(name)}.gate_up_proj"].weight
    assert first.shape[1:] == (2 * inner, width)
    assert linear_maps(model)[f"{_experts(name)}.down_proj"].weight.shape[1:] == (width, inner)


def _experts(name: str) -> str:
    return "model.layers.0.mlp.experts"


@pytest.mark.parametrize(
    ("name", "fails"), [("gpt2", False), ("gpt2", True), ("gpt_oss", True), ("deepseek_v3", False)]
)
def test_everything_is_put_back(name: str, fails: bool) -> None:
    model, inputs = a_model(name), inputs_of(name)
    before, plain, held = parameters(model), logits(model, **inputs), hooks(model)
    copies = {key: value.clone() for key, value in before.items() if value is not None}
    try:
        with QuantizeLinear(Grid(3), Grid(4), skip=()).applied(model):
            assert not torch.equal(logits(model, **inputs), plain)
            if fails:
                raise ZeroDivisionError
    except ZeroDivisionError:
        assert fails
    after = parameters(model)
    assert all(after[key] is value for key, value in before.items())
    assert all(torch.equal(after[key], value) for key, value in copies.items())
    assert hooks(model) == held
    assert torch.equal(logits(model, **inputs), plain)


def test_an_error_while_it_is_put_on_leaves_nothing() -> None:
    model = a_model("llama4")
    before, held = parameters(model), hooks(model)
    with pytest.raises(UnsupportedModelError, match="custom code"), QuantizeLinear(Grid(4), Grid(8)).applied(model):
        pass
    assert all(value is before[key] for key, value in parameters(model).items())
    assert hooks(model) == held


def test_a_tied_embedding_stays_where_the_head_is_rounded() -> None:
    model = a_model("gpt2")
    table = model.get_input_embeddings().weight
    assert model.lm_head.weight is table
    before = table.clone()
    with QuantizeLinear(Grid(2), skip=()).applied(model):
        assert torch.equal(model.get_input_embeddings().weight, before)
        assert not torch.equal(model.lm_head.weight, before)
        assert isinstance(model.lm_head.weight, torch.nn.Parameter)


def test_a_reparametrized_weight_is_reached() -> None:
    sizes = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LabConfig(**sizes, intermediate_size=48, weight_reparam="sigma")
    model, ids = LabForCausalLM(config).eval(), torch.arange(12)[None]
    plain = logits(model, input_ids=ids)
    with QuantizeLinear(Grid(2)).applied(model):
        weight = model.model.layers[0].mlp.up_proj.weight
        assert len(weight[0].unique()) <= 4
        assert not torch.equal(logits(model, input_ids=ids), plain)
    assert torch.equal(logits(model, input_ids=ids), plain)


def test_routers_and_embeddings_are_said_to_be_left() -> None:
    names = left_out(a_model("qwen3_moe"))
    assert set(names) == {
        "model.embed_tokens.weight",
        "model.layers.0.mlp.gate.weight",
        "model.layers.1.mlp.gate.weight",
        "lm_head.weight",
    }
    assert "model.layers.0.mlp.down_proj.weight" in left_out(a_model("llama"), skip=("down_proj",))
    assert not any("router" in path for path in linear_maps(a_model("phimoe")))


def test_skip_names_parts_of_paths() -> None:
    model = a_model("llama")
    every = linear_maps(model)
    assert (len(every), len(linear_maps(model, ()))) == (14, 15)
    assert all(".1." in path for path in linear_maps(model, ("layers.0", "lm_head")))
    assert not any("up_proj" in path for path in linear_maps(model, ("up_proj",)))
    with pytest.raises(InputError, match="did you mean 'down_proj'"):
        linear_maps(model, ("down_prj",))


@pytest.mark.parametrize(
    ("name", "where"),
    [("recurrent_gemma", "rg_lru"), ("zamba", "mamba"), ("longt5", "encoder.block")],
)
def test_matrices_that_cannot_be_reached_are_refused_by_name(name: str, where: str) -> None:
    model = a_model(name)
    with pytest.raises(UnsupportedModelError, match=where) as refused:
        linear_maps(model)
    skip = str(refused.value).partition("skip=(")[2].partition(")")[0]
    assert linear_maps(model, tuple(part.strip(" '") for part in skip.split(",")))


def test_weights_that_are_no_numbers_in_memory_are_refused() -> None:
    model = a_model("llama")
    codes = torch.ones(48, 32, dtype=torch.int8)
    model.model.layers[1].mlp.up_proj.weight = torch.nn.Parameter(codes, requires_grad=False)
    with pytest.raises(UnsupportedModelError, match=r"1\.mlp\.up_proj.*int8"), QuantizeLinear(Grid(4)).applied(model):
        pass
