"""VAR on a small vision-language model: against the authors' rule on written-out maps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.interventions import VisualRedistribution
from sinkscope.interventions.reweigh.visual_redistribution import sinks_of
from sinkscope.trials import changed
from tests.families.family import Family
from tests.families.inputs import IMAGE_TOKEN
from tests.families.registry import FAMILIES
from tests.interventions.conftest import hooks, logits
from tests.interventions.reweigh import written

DIMENSIONS, TAU = (3, 8), 2.0  # random streams have no spikes, so that every seventh token or so is a sink


def llava() -> Family:
    """The registry's, with as many layers that some are neither among the first two nor the last."""
    found = FAMILIES["llava"]
    text = {**found.options["text_config"], "num_hidden_layers": 5}
    return Family(found.config, {**found.options, "text_config": text}, auto=found.auto, kind=found.kind, sharpness=6.0)


def a_case(host: str = "sdpa") -> tuple[PreTrainedModel, dict[str, Tensor]]:
    return llava().build(host), llava().inputs()


def written_var(model: PreTrainedModel, inputs: dict[str, Tensor], var: VisualRedistribution) -> tuple[Tensor, int]:
    """The authors' loop over heads and queries, in layers but the first two and the last; and how often it acted."""
    image = inputs["input_ids"] == IMAGE_TOKEN
    streams: list[Tensor] = []
    acted = 0
    layers = iter(range(100))

    def rule(a: Tensor, slot: Tensor) -> Tensor:
        nonlocal acted
        layer = next(layers)
        if layer < 2 or layer == 4:
            return a
        hidden = streams[layer]
        size = hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + 1e-6)
        sinks = size[..., list(var.dimensions)].abs().amax(-1) > var.tau
        new = a.clone()
        for row in range(len(a)):
            seen, others = image[row] & sinks[row], image[row] & ~sinks[row]
            if not seen.any():
                continue
            last = int(image[row].nonzero().max())
            for head in range(a.shape[1]):
                for t in range(last + 1, a.shape[2]):
                    w = a[row, head, t]
                    portion = w[seen].sum() / (w[image[row]] + 1e-6).sum()
                    if portion > var.rho or w[image[row]].sum() < var.least:
                        continue
                    acted += 1
                    changed = torch.where(sinks[row], var.p * w, w)
                    freed = (1 - var.p) * w[sinks[row]].sum()
                    new[row, head, t] = changed + freed * torch.where(others, w, 0.0) / w[others].sum()
        return new

    kept = [
        block.register_forward_pre_hook(lambda m, args, kwargs: streams.append(args[0]), with_kwargs=True)
        for block in model.model.language_model.layers
    ]
    with written.maps_changed(model.model.language_model, rule):
        found = logits(model, **inputs)
    for hook in kept:
        hook.remove()
    return found, acted


@pytest.mark.parametrize("host", ["sdpa", "eager"])
def test_it_is_the_authors_rule_on_maps(host):
    model, inputs = a_case(host)
    var, plain = VisualRedistribution(DIMENSIONS, IMAGE_TOKEN, tau=TAU, rho=0.8, p=0.2), logits(model, **inputs)
    count = hooks(model)  # behind the first pass, in which transformers puts on some of its own
    with var.applied(model):
        found = logits(model, **inputs)
    assert hooks(model) == count
    expected, acted = written_var(model, inputs, var)
    assert acted > 10
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found, plain, atol=1e-4)
    last = int((inputs["input_ids"] == IMAGE_TOKEN).nonzero()[:, 1].min())
    torch.testing.assert_close(found[:, :last], plain[:, :last], rtol=1e-5, atol=1e-6)


def test_keeping_all_of_it_changes_nothing():
    model, inputs = a_case()
    with VisualRedistribution(DIMENSIONS, IMAGE_TOKEN, tau=TAU, p=1.0).applied(model):
        torch.testing.assert_close(logits(model, **inputs), logits(model, **inputs))
    with VisualRedistribution(DIMENSIONS, IMAGE_TOKEN, tau=100.0).applied(model):
        under = logits(model, **inputs)
    torch.testing.assert_close(under, logits(model, **inputs), rtol=0, atol=0)


def test_cached_decoding_is_the_full_pass():
    model, inputs = a_case()
    ids, cut = inputs["input_ids"], inputs["input_ids"].shape[1] - 3
    var = VisualRedistribution(DIMENSIONS, IMAGE_TOKEN, tau=TAU, rho=0.8, p=0.2)
    with var.applied(model), torch.no_grad():
        whole = model(**inputs).logits
        rest = {name: value for name, value in inputs.items() if name not in ("input_ids", "attention_mask")}
        first = model(input_ids=ids[:, :cut], **rest, use_cache=True)
        steps, cache = [first.logits], first.past_key_values
        for place in range(cut, ids.shape[1]):
            steps.append(model(input_ids=ids[:, place : place + 1], past_key_values=cache).logits)
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_dimensions_are_found_and_controls_take_other_tokens():
    model, inputs = a_case()
    var = VisualRedistribution.of(model, inputs, tau=TAU)
    assert var.image_token == IMAGE_TOKEN
    assert len(var.dimensions) == 2
    assert var.control(torch.Generator().manual_seed(0), model, inputs).seed is not None
    var = VisualRedistribution(DIMENSIONS, IMAGE_TOKEN, tau=TAU, rho=0.8, p=0.2)
    assert changed(model, inputs, var, controls=2).cost("VisualRedistribution").value > 0


def test_its_control_takes_the_same_tokens_in_every_batch():
    model, inputs = a_case()
    var = VisualRedistribution(DIMENSIONS, IMAGE_TOKEN, tau=TAU, rho=0.8, p=0.2, seed=3)
    with var.applied(model):
        whole = logits(model, **inputs)
        found = logits(model, **{name: value[1:] for name, value in inputs.items()})
    torch.testing.assert_close(found, whole[1:], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(whole, logits(model, **inputs), atol=1e-4)


def test_a_sink_stands_out_in_a_named_dimension():
    hidden = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
    hidden[1, 3, 7] = 40.0
    expected = torch.zeros(2, 5, dtype=torch.bool)
    expected[1, 3] = True
    assert torch.equal(sinks_of(hidden, (7,), 3.0), expected)
    assert not sinks_of(hidden, (6,), 3.0).any()


def test_what_has_no_meaning_is_refused():
    with pytest.raises(InputError, match="shares from 0 to 1"):
        VisualRedistribution((1,), 5, p=2.0)
    with pytest.raises(UnsupportedModelError, match="names no image token"):
        VisualRedistribution.of(FAMILIES["llama"].build(), FAMILIES["llama"].inputs())
    with (
        pytest.raises(InputError, match="none is left"),
        VisualRedistribution((1,), 5).applied(FAMILIES["llava"].build()),
    ):
        pass
    model, inputs = a_case()
    with VisualRedistribution((999,), IMAGE_TOKEN).applied(model), pytest.raises(InputError, match="does not exist"):
        logits(model, **inputs)
