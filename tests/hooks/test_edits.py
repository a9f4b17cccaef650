"""Reading and editing linear maps: each edit does what the same change of the weights would do, and no more."""

from __future__ import annotations

from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.pytorch_utils import Conv1D

from sinkscope.errors import UnsupportedModelError
from sinkscope.hooks.dispatch import Invocation, watching
from sinkscope.hooks.modules import attention_layers
from sinkscope.hooks.passes import Passes
from sinkscope.hooks.projections import Projection, attention_projections, projection, projections
from tests.families.registry import FAMILIES
from tests.measurement.conftest import build

HOSTS = (
    "llama",
    "gpt2",
    "gpt_neox",
    "phi3",
    "opt",
    "bert",
    "olmo2",
    "deepseek_v3",
    "qwen3_moe",
    "gpt_oss",
    "qwen3_next",
)
NORMED = ("qwen3_moe", "olmo2", "qwen3_next")  # queries and keys
MADE_OF = {  # what of an attention call changes with a projection
    "query": {"query"},
    "query_latent": {"query"},
    "key": {"key"},
    "rotary_key": {"key"},
    "latent": {"key", "value"},
    "value": {"value"},
}


@dataclass
class Calls:
    """Arguments of the first attention layer's call."""

    first: nn.Module
    given: dict[str, Tensor] = field(default_factory=dict)

    def watches(self, module: nn.Module) -> bool:
        return module is self.first

    def attended(self, invocation: Invocation) -> None:
        self.given = {name: invocation.arguments[name].clone() for name in ("query", "key", "value")}


@torch.no_grad()
def output_of(name: str, model: nn.Module) -> Tensor:
    output = model(**FAMILIES[name].inputs())
    return output.logits if "logits" in output else output.last_hidden_state


@torch.no_grad()
def edited(name: str, model: nn.Module, one: Projection, factor: float) -> Tensor:
    with ExitStack() as stack:
        passes = Passes(model)
        passes.attach(stack)
        one.edit_output(lambda values: values * factor, passes, stack)
        return output_of(name, model)


def scale_rows(one: Projection, path: str, model: nn.Module, factor: float) -> None:
    """Multiply the projection's rows of weight and bias in another copy of its model."""
    module = model.get_submodule(path)
    rows = slice(None) if one.columns is None else one.columns
    weight = module.weight.data.T if isinstance(module, Conv1D) else module.weight.data
    weight[rows] *= factor
    if getattr(module, "bias", None) is not None:
        module.bias.data[rows] *= factor


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTS)
def test_an_edit_of_the_output_is_an_edit_of_its_rows(name: str) -> None:
    model = build(name)
    kinds = {one.kind: one for one in projections(model) if isinstance(one.module, nn.Linear | Conv1D)}
    before = output_of(name, model)
    for one in kinds.values():
        other = deepcopy(model)
        scale_rows(one, one.path, other, 1.5)
        wanted = output_of(name, other)
        torch.testing.assert_close(
            edited(name, model, one, 1.5), wanted, msg=lambda text, one=one: f"{one.path}: {text}"
        )
    assert torch.equal(output_of(name, model), before), "afterwards the model is what it was"


@pytest.mark.parametrize("name", HOSTS)
def test_a_kind_makes_what_its_name_says(name: str) -> None:
    model = build(name)
    first = next(iter(attention_layers(model)))
    found = attention_projections(model, first)
    assert {"query", "key", "value", "output"} <= {one.kind for one in found}

    def given(one: Projection | None) -> dict[str, Tensor]:
        calls = Calls(first)
        with watching(calls):
            output_of(name, model) if one is None else edited(name, model, one, 1.5)
        return calls.given

    plain = given(None)
    for one in found:
        if one.kind in MADE_OF:
            changed = {part for part, values in given(one).items() if not torch.allclose(values, plain[part])}
            # A norm behind the projection takes a common factor back.
            normed = one.kind in ("latent", "query_latent") or (name in NORMED and one.kind in ("query", "key"))
            assert changed == MADE_OF[one.kind] or (normed and not changed), one.path


@pytest.mark.parametrize("name", ["llama", "phi3", "olmo2"])
def test_gate_and_up_make_what_enters_down(name: str) -> None:
    model = build(name)
    seen: dict[str, list[Tensor]] = {"gate": [], "up": [], "down": []}
    with ExitStack() as stack:
        for one in projections(model):
            if one.kind in ("gate", "up"):
                one.read_output(seen[one.kind].append, stack)
            if one.kind == "down":
                one.read_input(seen["down"].append, stack)
        output_of(name, model)
    act = ACT2FN[model.config.hidden_act]
    assert len(seen["down"]) == model.config.num_hidden_layers
    for gate, up, down in zip(seen["gate"], seen["up"], seen["down"], strict=True):
        torch.testing.assert_close(act(gate) * up, down)


@pytest.mark.parametrize("name", HOSTS)
def test_every_linear_map_of_the_blocks_is_there_once(name: str) -> None:
    model = build(name)
    found = projections(model)
    linear = {path for path, module in model.named_modules() if isinstance(module, nn.Linear | Conv1D)}
    inside = {path for path in linear if any(part.isdigit() for part in path.split("."))}
    assert inside <= {one.path for one in found} <= inside | {one.path for one in found if one.kind == "experts"}
    for path in inside:
        parts = [one for one in found if one.path == path]
        if len(parts) > 1:
            columns = torch.cat([one.columns for one in parts]).sort().values
            assert torch.equal(columns, torch.arange(len(columns))), f"{path}: each column belongs to one part"
            rows = sum(len(one.weight) for one in parts)
            assert rows == len(columns)


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "gpt_oss"])
def test_experts_are_reached_as_one(name: str) -> None:
    model = build(name)
    experts = [one for one in projections(model) if one.kind == "experts"]
    assert len(experts) == model.config.num_hidden_layers
    plain = output_of(name, model)
    assert not torch.allclose(edited(name, model, experts[0], 0.0), plain)
    with pytest.raises(UnsupportedModelError, match="not a single linear map"):
        _ = experts[0].weight


def test_an_edit_of_the_input_is_seen_by_readers() -> None:
    model = build("llama")
    down = next(one for one in projections(model) if one.kind == "down")
    entered: list[Tensor] = []
    with ExitStack() as stack:
        passes = Passes(model)
        passes.attach(stack)
        down.read_input(entered.append, stack)
        down.edit_input(torch.zeros_like, passes, stack)
        output_of("llama", model)
    assert float(entered[0].abs().max()) == 0


def test_an_edit_that_nothing_came_by_is_an_error() -> None:
    model = build("llama")
    one = projection(model, next(iter(attention_layers(model))), "value")
    with ExitStack() as stack:
        passes = Passes(model)
        passes.attach(stack)
        one.edit_output(torch.zeros_like, passes, stack)
        # As in a layer that reads the weight itself and never calls the module.
        model.get_submodule(one.owner).v_proj = deepcopy(one.module)
        model.get_submodule(one.owner).v_proj._forward_hooks.clear()
        with pytest.raises(UnsupportedModelError, match=r"v_proj' was not called by the end of a pass"):
            output_of("llama", model)


def test_a_projection_that_is_not_there_names_those_that_are() -> None:
    model = build("deepseek_v3")
    with pytest.raises(UnsupportedModelError, match=r"no projection 'gate'.*there are:.*rotary_key"):
        projection(model, next(iter(attention_layers(model))), "gate")


def test_generation_may_leave_out_what_a_cache_holds() -> None:
    model = build("t5")
    wanted = model.generate(torch.arange(5)[None], max_new_tokens=3, do_sample=False)
    with ExitStack() as stack:
        passes = Passes(model)
        passes.attach(stack)
        kept = [one for one in projections(model) if one.kind in ("key", "value")]
        assert {"encoder", "decoder"} <= {one.path.split(".")[0] for one in kept}
        for one in kept:
            one.edit_output(lambda values: values, passes, stack)
        assert torch.equal(model.generate(torch.arange(5)[None], max_new_tokens=3, do_sample=False), wanted)


def test_an_edit_that_ended_is_required_no_more() -> None:
    model = build("llama")
    one, plain = projection(model, next(iter(attention_layers(model))), "value"), output_of("llama", model)
    with ExitStack() as outer:
        passes = Passes(model)
        passes.attach(outer)
        with ExitStack() as inner:
            one.edit_output(torch.zeros_like, passes, inner)
        assert torch.equal(output_of("llama", model), plain)
