"""ACT: against the paper's rule on written-out maps, as published and guarded."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import StaticCache

from sinkscope.errors import InputError
from sinkscope.interventions import ACT
from sinkscope.interventions.reweigh.act import redistributed
from sinkscope.trials import changed
from tests.families.registry import FAMILIES
from tests.interventions.conftest import logits
from tests.interventions.reweigh import written
from tests.interventions.reweigh.test_reweigh import HOSTS, PADS, padded


@pytest.mark.slow
@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize(("name", "host"), HOSTS)
def test_it_is_the_papers_rule_on_maps(name, host, padding, guarded):
    model, inputs = FAMILIES[name].build(host), FAMILIES[name].inputs()
    inputs, pads = (padded(inputs), PADS) if padding else (inputs, 0 * PADS)
    real = inputs.get("attention_mask", torch.ones(3, 24)).bool()
    with ACT(0.3, 0.1, guarded).applied(model):
        found = logits(model, **inputs)
    with written.maps_changed(model, lambda a, slot: written.act(a, 0.1, 0.3, guarded, pads)):
        expected = logits(model, **inputs)
    torch.testing.assert_close(found[real], expected[real], rtol=1e-4, atol=2e-5)
    assert not torch.allclose(found[real], logits(model, **inputs)[real], atol=1e-4)


def test_a_bidirectional_layer_divides_by_all_queries():
    model, inputs = FAMILIES["bert"].build("sdpa"), FAMILIES["bert"].inputs()

    def rule(a: Tensor, slot: Tensor) -> Tensor:
        sinks = (a.mean(2) > 0.06) & ((a.mean(2) > 0.06).cumsum(-1) > 1)
        kept = a.masked_fill(sinks[:, :, None], 0.0)
        freed = 0.7 * (a * sinks[:, :, None]).sum(-1, keepdim=True)
        return a * torch.where(sinks[:, :, None], 0.3, 1.0) + freed * kept / kept.sum(-1, keepdim=True)

    with ACT(0.3, 0.06).applied(model):
        found = logits(model, **inputs)
    with written.maps_changed(model, rule):
        torch.testing.assert_close(found, logits(model, **inputs), rtol=1e-4, atol=1e-5)


def test_a_factor_of_one_and_a_threshold_nothing_reaches_change_nothing():
    model, inputs = FAMILIES["llama"].build("sdpa"), FAMILIES["llama"].inputs()
    plain = logits(model, **inputs)
    for same in (ACT(1.0), ACT(0.4, 5.0)):
        with same.applied(model):
            assert torch.equal(logits(model, **inputs), plain)


@pytest.mark.parametrize("sharpness", [3.0, 6.0, 12.0])
def test_a_rest_too_small_to_divide_by_leaves_the_row(sharpness):
    """Scores so far apart that weights are subnormal, or 0."""
    model, inputs = FAMILIES["llama"].build("sdpa"), FAMILIES["llama"].inputs()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.mul_(sharpness)
            layer.self_attn.k_proj.weight.mul_(sharpness)
    small: list[Tensor] = []

    def noted(a: Tensor, slot: Tensor) -> Tensor:
        rest = 1 - a.double().amax(-1)
        small.append((rest < torch.finfo(torch.float32).tiny).any())
        return a

    with written.maps_changed(model, noted):
        logits(model, **inputs)
    with ACT(0.0, 0.01).applied(model):
        assert logits(model, **inputs).isfinite().all()
    assert any(small) or sharpness < 6


def test_sinks_are_found_where_rows_begin_and_kept():
    """A cached step has the sinks of the prompt: as if the whole map had the prompt's alone."""
    model, ids = FAMILIES["llama"].build("sdpa"), FAMILIES["llama"].inputs()["input_ids"]
    sets: list[Tensor] = []

    def rule(a: Tensor, slot: Tensor) -> Tensor:
        prompt = a[:, :, :16, :16]
        r = prompt.sum(2) / torch.arange(16, 0, -1)
        sinks = (r > 0.1) & ((r > 0.1).cumsum(-1) > 1)
        sinks = torch.nn.functional.pad(sinks, (0, a.shape[-1] - 16))
        sets.append(sinks)
        kept = a.masked_fill(sinks[:, :, None], 0.0)
        left = kept.sum(-1, keepdim=True)
        freed = 0.6 * (a * sinks[:, :, None]).sum(-1, keepdim=True)
        new = a * torch.where(sinks[:, :, None], 0.4, 1.0) + freed * kept / left.clamp(min=1e-30)
        return torch.where(left > 0, new, a)

    with ACT().applied(model), torch.inference_mode():
        first = model(ids[:, :16], use_cache=True)
        steps = [first.logits]
        for place in range(16, 24):
            steps.append(model(ids[:, place : place + 1], past_key_values=first.past_key_values).logits)
    with written.maps_changed(model, rule):
        expected = logits(model, input_ids=ids)
    assert any(bool(found.any()) for found in sets)
    torch.testing.assert_close(torch.cat(steps, 1), expected, rtol=1e-4, atol=2e-5)


def test_a_pass_that_continues_other_rows_is_refused():
    model, ids = FAMILIES["llama"].build("sdpa"), FAMILIES["llama"].inputs()["input_ids"]
    cache = model(ids[:, :9], use_cache=True).past_key_values
    with ACT().applied(model), pytest.raises(InputError, match="where rows begin"):
        logits(model, input_ids=ids[:, 9:], past_key_values=cache)


def test_generate_runs_under_it():
    model, ids = FAMILIES["llama"].build("sdpa"), FAMILIES["llama"].inputs()["input_ids"]
    with ACT().applied(model):
        found = model.generate(ids, max_new_tokens=4, do_sample=False)
    assert found.shape == (3, 28)


def test_its_control_takes_as_many_other_columns():
    model, inputs = FAMILIES["llama"].build("sdpa"), FAMILIES["llama"].inputs()
    control = ACT(guarded=True).control(torch.Generator().manual_seed(0), model, inputs)
    assert control.seed is not None
    assert control.beta == 0.4
    trial = changed(model, inputs, ACT(0.2, 0.05), controls=2)
    assert len(trial.controls("ACT")) == 2
    assert all(trial.cost(name).value > 0 for name in trial.arms[1:])


def test_its_control_takes_the_same_columns_in_every_batch():
    model, ids = FAMILIES["llama"].build("sdpa"), FAMILIES["llama"].inputs()["input_ids"]
    longer = {"input_ids": F.pad(ids, (5, 0)), "attention_mask": F.pad(torch.ones_like(ids), (5, 0))}
    with ACT(0.3, 0.05, seed=3).applied(model):
        for name, given in (("input_ids", ids), ("inputs_embeds", model.get_input_embeddings()(ids))):
            whole, rest = logits(model, **{name: given}), logits(model, **{name: given[1:]})
            torch.testing.assert_close(rest, whole[1:], rtol=1e-4, atol=1e-5)
        # Padding in front is no part of what a row says.
        found, expected = logits(model, **longer)[:, 5:], logits(model, input_ids=ids)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_its_control_takes_no_empty_place_of_a_static_cache():
    model, ids = FAMILIES["llama"].build("sdpa"), FAMILIES["llama"].inputs()["input_ids"][:, :8]
    with ACT(0.3, 0.05, seed=3).applied(model):
        expected = logits(model, input_ids=ids)
        found = logits(model, input_ids=ids, past_key_values=StaticCache(config=model.config, max_cache_len=40))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found, logits(model, input_ids=ids), atol=1e-4)


def test_digits_survive_where_sinks_hold_nearly_all():
    scores = torch.randn(1, 1, 4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scores[..., 1] += torch.tensor([0.0, 8, 14, 20])
    weights, value = scores.softmax(-1), torch.randn(1, 1, 6, 3, dtype=torch.float64)
    sinks = torch.arange(6) == 1
    kept = weights.masked_fill(sinks, 0.0)
    left = kept.sum(-1, keepdim=True)
    mass = 1 - left
    expected = (weights * torch.where(sinks, 0.4, 1.0) + 0.6 * mass * kept / left) @ value
    part, rest = (weights.float() * sinks) @ value.float(), kept.float() @ value.float()
    found = redistributed(part, rest, mass.float()[..., 0], left.float()[..., 0], 0.4)
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("options", "said"), [({"beta": 1.5}, "beta"), ({"threshold": -0.1}, "threshold")])
def test_what_has_no_meaning_is_refused(options, said):
    with pytest.raises(InputError, match=said):
        ACT(**options)
