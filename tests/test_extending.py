"""A package from outside: what it registers works wherever its kin work, and fails loudly where it is missing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import LlamaForCausalLM

import sinkscope as ss
from sinkscope.attention import CATALOG, explain, name_of, resolve
from sinkscope.caches import POLICIES
from sinkscope.cli import main
from sinkscope.experiments import QUESTIONS, find
from sinkscope.interventions import NAMED, Subject, named
from sinkscope.measurement import OBSERVERS
from sinkscope.model import LabConfig, LabForCausalLM
from sinkscope.quantization import SCHEMES
from sinkscope.training import Recipe
from tests.registering import registries, toy_installed


@pytest.fixture
def toy() -> Iterator[None]:
    with toy_installed():
        yield


def ids(rows: int = 2, tokens: int = 20) -> torch.Tensor:
    return torch.randint(0, 101, (rows, tokens))


def gone() -> None:
    """As where the package is not installed."""
    for registry in registries():
        registry.added.clear()


def lab(attention: object) -> LabForCausalLM:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LabForCausalLM(LabConfig(vocab_size=101, attention=attention, **sizes)).eval()


def powers(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """The weights of every layer by the formula: s² over the sum of s², of queries and keys behind rotation."""
    found: list[torch.Tensor] = []

    def keep(module: nn.Module, args: tuple, output: object) -> None:
        query, key = args[0].detach(), args[1].detach()
        scores = (query @ key.repeat_interleave(query.shape[1] // key.shape[1], 1).mT / query.shape[-1] ** 0.5).square()
        scores = scores.tril()
        found.append(scores / (scores.sum(-1, keepdim=True) + 1e-8))

    hooks = [m.operation.register_forward_hook(keep) for m in model.modules() if hasattr(m, "operation")]
    model(tokens)
    for hook in hooks:
        hook.remove()
    return torch.stack(found, 1)


def test_each_kind_is_listed_beside_its_kin(toy: None) -> None:
    for registry, name in (
        (CATALOG, "toy_powered"),
        (OBSERVERS, "ToyPrevious"),
        (NAMED, "toy-halve"),
        (POLICIES, "toy-long-values"),
        (SCHEMES, "toy-five"),
        (QUESTIONS, "toy-powers"),
    ):
        assert list(registry)[-1] == name
        assert name in registry


@pytest.mark.slow
def test_a_lab_model_with_its_operation_is_measured_by_the_formula(toy: None, tmp_path: Path) -> None:
    model, tokens = lab("toy_powered"), ids()
    loss = model(tokens, labels=tokens).loss
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    maps = powers(model, tokens)
    m = ss.measure(model, tokens, observers="all")
    received = maps.sum(-2) / torch.arange(20, 0, -1)
    torch.testing.assert_close(torch.from_numpy(m.data["attention_received"].values), received, atol=1e-5, rtol=1e-4)
    previous = maps.diagonal(-1, -2, -1).sum(-1) / 20
    torch.testing.assert_close(torch.from_numpy(m.data["toy_previous"].values), previous, atol=1e-5, rtol=1e-4)
    model.save_pretrained(tmp_path / "model")
    assert torch.equal(ss.load(str(tmp_path / "model"))(tokens).logits, model(tokens).logits)
    m.save(tmp_path / "m.nc")
    gone()
    with pytest.raises(
        ss.InputError, match=r"normalizer 'toy_powered' of .* is registered by the package 'sinkscope_toy"
    ):
        ss.load(str(tmp_path / "model"))
    assert "toy_previous" in ss.Measurement.load(tmp_path / "m.nc").data  # numbers need no code


def test_it_is_attached_and_taken_off_by_its_name(toy: None, tiny_llama: LlamaForCausalLM, tmp_path: Path) -> None:
    model, tokens = deepcopy(tiny_llama), ids()
    before = model(tokens).logits
    assert ss.attach(model, "toy_powered").changes == ("toy_powered",)
    after = model(tokens).logits
    assert not torch.allclose(before, after, atol=1e-3)
    m = ss.measure(model, tokens)
    received = powers(model, tokens).sum(-2) / torch.arange(20, 0, -1)
    torch.testing.assert_close(torch.from_numpy(m.data["attention_received"].values), received, atol=1e-5, rtol=1e-4)
    model.save_pretrained(tmp_path)
    torch.testing.assert_close(ss.load(str(tmp_path))(tokens).logits, after)
    ss.detach(model)
    assert torch.equal(model(tokens).logits, before)
    gone()
    with pytest.raises(ss.InputError, match="'toy_powered'"):
        ss.load(str(tmp_path))


def test_it_decodes_with_a_cache_as_without(toy: None) -> None:
    model, tokens = lab("toy_powered"), ids()
    with torch.no_grad():
        whole = model(tokens).logits
        first = model(tokens[:, :12], use_cache=True)
        rest = model(tokens[:, 12:], past_key_values=first.past_key_values).logits
    torch.testing.assert_close(torch.cat([first.logits, rest], 1), whole, atol=1e-4, rtol=1e-4)


def test_a_recipe_has_the_hash_of_what_it_trains(toy: None) -> None:
    given = {"name": "mine", "steps": 1, "batch_size": 1, "context": 8, "optimizer": {"lr": 1e-3}}
    attentions = ("toy_powered", resolve("toy_powered").to_dict())
    by_name, by_value = (Recipe(**given, attention=attention, model={"vocab_size": 64}) for attention in attentions)
    assert by_name.hash({}) == by_value.hash({}) != Recipe(**given, model={"vocab_size": 64}).hash({})
    assert by_name.folder({}).startswith("mine-toy_powered-")
    written = json.loads(by_name.model_dump_json())
    assert Recipe(**written) == by_name
    assert name_of(by_name.operations[0]) == "toy_powered"
    gone()
    with pytest.raises(ss.InputError, match="'toy_powered' is registered by the package 'sinkscope_toy'"):
        Recipe(**written)


def test_its_policy_and_its_intervention(toy: None, tiny_llama: LlamaForCausalLM) -> None:
    tokens = ids(1, 40)
    with ss.evicting(tiny_llama, "toy-long-values", 10) as cache:
        tiny_llama.generate(tokens, past_key_values=cache, max_new_tokens=1, do_sample=False)
    assert {layer.places.shape[-1] for layer in cache.kept} == {10}
    found = named("toy-halve", Subject(tiny_llama, tokens))
    norms = [ss.measure(tiny_llama, tokens, ["HiddenNorms"]).data["hidden_norm"].isel(depth=1, position=0).item()]
    with found.intervention.applied(tiny_llama):
        norms += [ss.measure(tiny_llama, tokens, ["HiddenNorms"]).data["hidden_norm"].isel(depth=1, position=0).item()]
    assert norms[1] == pytest.approx(norms[0] / 2, rel=1e-5)
    trial = ss.trials.changed(tiny_llama, tokens, found.intervention, name="halved", controls=2)
    assert trial.controls("halved")


def test_its_question(toy: None) -> None:
    question = find("toy-powers")
    assert question is QUESTIONS["toy-powers"]
    recipes = question.recipes("nano", 1)
    assert recipes["powers", 0].operation == resolve("toy_powered")


def test_the_command_line_knows_all_of_it(toy: None, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def said(*argv: str) -> str:
        assert main(argv) == 0
        return capsys.readouterr().out

    assert json.loads(said("zoo", "toy_powered", "--json"))["formula"] == "A = |s|^p / Σ |s|^p"
    assert "toy_powered" in said("zoo")
    listed = json.loads(said("experiment", "list", "--json"))["experiments"]
    assert "toy-powers" in [each["name"] for each in listed]
    assert "toy_powered" in said("experiment", "show", "toy-powers")
    assert str(explain("toy_powered", "cpu")).startswith("fast (chunked")
