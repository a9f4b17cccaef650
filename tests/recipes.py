"""What the recipes of CONTRIBUTING.md add, in use. `tests/test_contributing.py` runs this where they were carried out.

One test for each recipe that has a diff, named after it: "How to add an observer" is `test_an_observer`.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import sinkscope as ss

pytestmark = pytest.mark.usefixtures("no_gradients")


@pytest.fixture
def no_gradients():
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return ss.load("nano", attn="eager")


@pytest.fixture
def ids(model: nn.Module) -> torch.Tensor:
    return torch.randint(3, model.config.vocab_size, (2, 20))


def test_an_operation():
    query, key = torch.randn(2, 1, 2, 7, 8).unbind()
    exponentials = ((query @ key.mT) / 8**0.5).exp().tril()
    expected = 0.5 * exponentials / (1 + exponentials.sum(-1, keepdim=True))
    torch.testing.assert_close(ss.attention.attend(query, key, key, "halved_off_by_one").output, expected @ key)


def test_an_observer(model: nn.Module, ids: torch.Tensor):
    measurement = ss.measure(model, ids, observers="all")
    maps = torch.stack(model(ids, output_attentions=True, use_cache=False).attentions, 1)
    expected = maps.diagonal(-1, -2, -1).sum(-1) / maps.shape[-1]
    torch.testing.assert_close(torch.from_numpy(measurement.data["previous_token"].values), expected)


def test_an_intervention(model: nn.Module, ids: torch.Tensor):
    from sinkscope.interventions import Subject, named

    halved = named("halve-sink", Subject(model, ids)).intervention
    norms = [ss.measure(model, ids).data["hidden_norm"].sel(position=0).isel(depth=1).values]
    with halved.applied(model):
        norms.append(ss.measure(model, ids).data["hidden_norm"].sel(position=0).isel(depth=1).values)
    assert abs(norms[1] / norms[0] - 0.5).max() < 1e-5
    assert ss.trials.changed(model, ids, halved, name="halved", controls=2).controls("halved")


def test_an_eviction_policy(model: nn.Module, ids: torch.Tensor):
    from sinkscope.caches.policies import ValueNorm

    with ss.evicting(model, "value-norm", 6) as cache:
        model(ids, past_key_values=cache)
    kept = [layer.slots["values"].norm(dim=-1) for layer in cache.kept]
    with ss.evicting(model, ValueNorm(), 20) as cache:
        model(ids, past_key_values=cache)
    for norms, layer in zip(kept, cache.kept, strict=True):
        every = layer.slots["values"].norm(dim=-1).sort(-1).values
        torch.testing.assert_close(norms.sort(-1).values, every[..., -6:])


def test_a_quantization_scheme(model: nn.Module, ids: torch.Tensor):
    from sinkscope.quantization import SCHEMES, linear_maps

    assert "w4-inner" in SCHEMES
    trial = ss.trials.scheme_trial(model, ids.repeat(2, 1), "w4-inner", {})
    assert trial.mean("w4-inner").value > 0
    before = {path: one.weight.clone() for path, one in linear_maps(model).items()}
    with SCHEMES["w4-inner"].make(model, {"input_ids": ids}, None).applied(model):
        changed = {path for path, one in linear_maps(model).items() if not torch.equal(one.weight, before[path])}
    assert {path.split("layers.")[1][0] for path in changed} == {"1", "2"}  # nano has blocks 0 to 3


def test_a_quantization_method(model: nn.Module):
    from sinkscope.grids import Grid, fake_quantize
    from sinkscope.quantization import Clipped, QuantizeLinear, linear_maps

    grid = Grid(3, symmetric=True)
    before = {path: one.weight.clone() for path, one in linear_maps(model).items()}
    with QuantizeLinear(grid, rounding=Clipped()).applied(model):
        for path, one in linear_maps(model).items():
            error, nearest = (
                (each - before[path]).square().sum(-1) for each in (one.weight, fake_quantize(before[path], grid))
            )
            assert (error <= nearest).all()
            assert error.sum() < 0.98 * nearest.sum()


def test_a_model_family():
    from tests.families import contract

    assert contract.check("arcee", "sdpa").holds
    host, tokens = contract.FAMILIES["arcee"].build("sdpa"), torch.randint(3, 90, (2, 12))
    before = host(tokens).logits
    ss.attach(host, "softmax_off_by_one")
    assert not torch.allclose(host(tokens).logits, before, atol=1e-3)


def test_a_metric_per_head(model: nn.Module, ids: torch.Tensor):
    measurement = ss.measure(model, ids)
    expected = measurement.data["query_norm"].mean(("sample", "position")).values.ravel()
    assert abs(measurement.heads()["query_norm"].to_numpy() - expected).max() < 1e-5


def test_a_question():
    questions = pytest.importorskip("sinkscope_replication.questions", reason="it is one of the replication's")
    assert [one.label for one in questions.QUESTIONS["tied-embeddings"].variations] == ["untied", "tied"]
