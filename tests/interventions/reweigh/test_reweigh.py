"""Weight on chosen tokens: closed forms against written-out maps, identities, gradients, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from sinkscope.attention import CATALOG, KeySlot
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import Invocation, watching
from sinkscope.interventions import All, ForbidSink, Reweigh, ZeroHeads
from sinkscope.interventions.reweigh.call import Call, weights_on
from sinkscope.interventions.reweigh.reweigh import joined, reweighed, weighed
from sinkscope.measurement import AttentionReceived, observe
from sinkscope.model import attach, load
from tests.families.registry import FAMILIES
from tests.families.test_own_attention import tiny
from tests.interventions.conftest import hooks, logits
from tests.interventions.reweigh import written
from tests.measurement.conftest import lab_model

HOSTS = [("llama", "sdpa"), ("llama", "eager"), ("mistral", "sdpa"), ("gemma2", "eager"), ("gpt_oss", "eager")]
PADS = torch.tensor([0, 5, 9])


def padded(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    mask = torch.arange(inputs["input_ids"].shape[1])[None] >= PADS[:, None]
    return {**inputs, "attention_mask": mask.long()}


def columns(positions: tuple[int, ...], pads: Tensor, keys: int = 24) -> Tensor:
    place = torch.arange(keys)[None] - pads[:, None]
    return torch.isin(place, torch.tensor(positions))


class Seeing:
    """Keeps the calls of one layer."""

    def __init__(self, layer: torch.nn.Module, shown: list[Invocation]) -> None:
        self.layer, self.shown = layer, shown

    def watches(self, module: torch.nn.Module) -> bool:
        return module is self.layer

    def attended(self, invocation: Invocation) -> None:
        self.shown.append(invocation)


@pytest.mark.slow
@pytest.mark.parametrize("gamma", [0.0, 0.03, 0.5, 8.0])
@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize(("name", "host"), HOSTS)
def test_it_is_what_written_out_maps_give(name, host, padding, gamma):
    model, inputs = FAMILIES[name].build(host), FAMILIES[name].inputs()
    inputs, pads = (padded(inputs), PADS) if padding else (inputs, 0 * PADS)
    positions = (0, 3, 7)
    with Reweigh(gamma, positions).applied(model):
        found = logits(model, **inputs)
    with written.maps_changed(model, lambda a, slot: written.reweighed(a, slot, columns(positions, pads), gamma)):
        expected = logits(model, **inputs)
    real = inputs.get("attention_mask", torch.ones(3, 24)).bool()
    torch.testing.assert_close(found[real], expected[real], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found[real], logits(model, **inputs)[real], atol=1e-3)


@pytest.mark.parametrize("gamma", [0.2, 5.0])
def test_it_is_a_bias_on_logits(gamma):
    model, inputs = FAMILIES["llama"].build("eager"), FAMILIES["llama"].inputs()
    lowest = torch.finfo(torch.float32).min
    mask = torch.full((24, 24), lowest).triu(1)
    mask[:, 2] += math.log(gamma)
    mask = mask.clamp(min=lowest).expand(3, 1, -1, -1)
    with Reweigh(gamma, (2,)).applied(model):
        found = logits(model, **inputs)
    torch.testing.assert_close(found, logits(model, **inputs, attention_mask=mask), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("host", ["sdpa", "eager"])
def test_gradients_are_those_of_written_out_maps(host, gamma):
    model, inputs = FAMILIES["llama"].build(host), FAMILIES["llama"].inputs(tokens=11)

    def gradients() -> list[Tensor]:
        model.zero_grad()
        model(**inputs).logits.log_softmax(-1)[..., 3].sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    with Reweigh(gamma, (0, 4)).applied(model):
        logits(model, **inputs)  # layers are trusted with the kernel's log-sum-exp, which has no gradient
        found = gradients()
    with written.maps_changed(model, lambda a, slot: written.reweighed(a, slot, columns((0, 4), 0 * PADS, 11), gamma)):
        expected = gradients()
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4 * float(theirs.abs().max()) + 1e-6)


def test_one_changes_nothing_and_no_trace_is_left():
    model, inputs = FAMILIES["llama"].build("sdpa"), FAMILIES["llama"].inputs()
    before, count = logits(model, **inputs), hooks(model)
    with Reweigh(1.0, (0,)).applied(model):
        assert torch.equal(logits(model, **inputs), before)
    with Reweigh(3.0, (0,)).applied(model):
        assert not torch.allclose(logits(model, **inputs), before, atol=1e-4)
    assert torch.equal(logits(model, **inputs), before)
    assert hooks(model) == count


def test_none_is_forbidding_where_forbidding_leaves_something():
    """Without keys 2 and 5 every query but their own sees others; `ForbidSink` lets those two keep themselves."""
    model, inputs = FAMILIES["llama"].build("eager"), FAMILIES["llama"].inputs()
    model.config.num_hidden_layers, model.model.layers = 1, model.model.layers[:1]
    with Reweigh(0.0, (2, 5)).applied(model):
        found = logits(model, **inputs)
    with ForbidSink((2, 5)).applied(model):
        expected = logits(model, **inputs)
    others = [t for t in range(24) if t not in (2, 5)]
    torch.testing.assert_close(found[:, others], expected[:, others], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found[:, [2, 5]], expected[:, [2, 5]], atol=1e-3)


def test_chosen_heads_alone_are_changed():
    model, inputs = FAMILIES["llama"].build("sdpa"), FAMILIES["llama"].inputs()
    seen: list[Tensor] = []
    model.model.layers[1].self_attn.o_proj.register_forward_pre_hook(lambda m, args: seen.append(args[0].clone()))
    logits(model, **inputs)
    with Reweigh(9.0, (1,), heads=((1, 2),)).applied(model):
        logits(model, **inputs)
    before, after = (part.unflatten(-1, (4, 8)) for part in seen)
    assert torch.equal(before[:, :, [0, 1, 3]], after[:, :, [0, 1, 3]])
    assert not torch.allclose(before[:, 2:, 2], after[:, 2:, 2], atol=1e-4)


def test_cached_decoding_is_the_full_pass():
    model, ids = FAMILIES["llama"].build("sdpa"), FAMILIES["llama"].inputs()["input_ids"]
    with Reweigh(6.0, (0, 4)).applied(model), torch.no_grad():
        whole = model(ids).logits
        first = model(ids[:, :9], use_cache=True)
        steps, cache = [first.logits], first.past_key_values
        for place in range(9, 24):
            done = model(ids[:, place : place + 1], past_key_values=cache)
            steps.append(done.logits)
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=1e-4, atol=1e-5)


def test_a_lab_model_and_its_llama_agree():
    lab = load("nano")
    llama, ids = lab.to_llama(), torch.randint(3, 2000, (2, 40), generator=torch.Generator().manual_seed(0))
    with Reweigh(4.0, (0,)).applied(lab), Reweigh(4.0, (0,)).applied(llama):
        torch.testing.assert_close(logits(lab, input_ids=ids), logits(llama, input_ids=ids), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["softmax_off_by_one", "sink_logit", "kv_bias"])
def test_slots_are_among_the_others(name):
    """Against weights as the operation writes them out, slots and their values included."""
    model, ids = lab_model(name), torch.randint(3, 90, (2, 17), generator=torch.Generator().manual_seed(0))
    calls: list[Tensor] = []
    layer = model.model.layers[0].self_attn
    layer.o_proj.register_forward_pre_hook(lambda m, args: calls.append(args[0].clone()))
    shown: list[Invocation] = []
    for gamma in (0.0, 5.0):
        with Reweigh(gamma, (1, 3)).applied(model), watching(Seeing(layer, shown)):
            logits(model, input_ids=ids)
        given = shown.pop().arguments
        weights = layer.operation.weights(given["query"], given["key"], given["attention_mask"])
        token, slot = weights.token.clone(), weights.slot
        token[..., [1, 3]] *= gamma
        total = token.sum(-1, keepdim=True) + slot.sum(-1, keepdim=True)
        expected = token / total @ given["value"].repeat_interleave(token.shape[1] // given["value"].shape[1], 1)
        context = layer.operation.context(given["query"], given["key"], given["attention_mask"])
        values = [terms.value for terms in layer.operation.slot_terms(context)]
        own = torch.zeros(()) if values[0] is None else slot * values[0].repeat_interleave(2, 0)[:, None]
        expected = (expected + own / total).transpose(1, 2).flatten(2)
        torch.testing.assert_close(calls.pop(), expected, rtol=1e-4, atol=1e-5)


def test_the_log_sum_exp_and_the_function_say_the_same(monkeypatch):
    model, inputs = FAMILIES["mistral"].build("sdpa"), FAMILIES["mistral"].inputs()
    with Reweigh(6.0, (0, 4)).applied(model):
        logits(model, **inputs)
        fast = logits(model, **inputs)  # trusted after the first pass
    monkeypatch.setattr(Call, "_by_lse", lambda self, columns: None)
    with Reweigh(6.0, (0, 4)).applied(model):
        torch.testing.assert_close(fast, logits(model, **inputs), rtol=1e-4, atol=1e-6)


def test_a_log_sum_exp_that_lies_is_not_trusted(monkeypatch):
    model, inputs = FAMILIES["llama"].build("sdpa"), FAMILIES["llama"].inputs()
    with Reweigh(6.0, (0,)).applied(model):
        expected = logits(model, **inputs)
    honest = Call._by_lse
    monkeypatch.setattr(Call, "_by_lse", lambda self, c: None if (a := honest(self, c)) is None else a * 1.01)
    with Reweigh(6.0, (0,)).applied(model):
        for _ in range(2):
            torch.testing.assert_close(logits(model, **inputs), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("gamma", [0.0, 0.01, 0.1, 0.5, 4.0])
def test_digits_survive_where_the_set_holds_nearly_all(gamma):
    """m → 1, in fp32 against fp64: the difference o − o_S would have no digit."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(1, 1, 5, 7, generator=generator, dtype=torch.float64)
    scores[..., 0] += torch.tensor([0.0, 5, 12, 18, 25])
    value = torch.randn(1, 1, 7, 4, generator=generator, dtype=torch.float64)
    weights = scores.softmax(-1)
    factor = torch.ones(7, dtype=torch.float64)
    factor[0] = gamma
    expected = (weights * factor / (weights * factor).sum(-1, keepdim=True)) @ value
    small, v = weights.float(), value.float()
    part, rest = weighed(small[..., :1], v[:, :, :1]), weighed(small[..., 1:], v[:, :, 1:])
    found = joined(part, rest, small[..., 0], small[..., 1:].sum(-1), gamma)
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-5)
    if gamma >= 0.125:
        found = reweighed(part + rest, part, small[..., 0], gamma)
        torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-5)


def test_weights_by_the_log_sum_exp_have_gradients_where_it_has():
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(2, 2, 5, 3, generator=generator, requires_grad=True) for _ in range(2))
    lse = (0.5 * query @ key.mT).logsumexp(-1)
    none = torch.zeros(1, 1, 1, 1, dtype=torch.bool)
    found = weights_on(query, key[:, :, :2], lse, 0.5, none)
    expected = (0.5 * query @ key.mT).softmax(-1)[..., :2]
    torch.testing.assert_close(found, expected)
    upstream = torch.randn(found.shape, generator=generator)
    for mine, theirs in zip(
        torch.autograd.grad(found, (query, key), upstream, retain_graph=True),
        torch.autograd.grad(expected, (query, key), upstream),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)


def test_it_stands_beside_others():
    model, inputs = FAMILIES["llama"].build("sdpa"), FAMILIES["llama"].inputs()
    with All((Reweigh(4.0, (0,), heads=((0, 0),)), Reweigh(0.3, (1,), heads=((0, 1),)))).applied(model):
        together = logits(model, **inputs)
    with Reweigh(4.0, (0,), heads=((0, 0),)).applied(model), Reweigh(0.3, (1,), heads=((0, 1),)).applied(model):
        torch.testing.assert_close(logits(model, **inputs), together)
    with ZeroHeads(((0, 1),)).applied(model):
        zeroed = logits(model, **inputs)
    for both in (
        (ZeroHeads(((0, 1),)), Reweigh(4.0, heads=((0, 1),))),
        (Reweigh(4.0, heads=((0, 1),)), ZeroHeads(((0, 1),))),
    ):
        with All(both).applied(model):
            torch.testing.assert_close(logits(model, **inputs), zeroed)
    both = All((Reweigh(4.0, (0,)), Reweigh(0.3, (1,))))
    with both.applied(model), pytest.raises(UnsupportedModelError, match="cannot be combined"):
        logits(model, **inputs)
    with observe(model, AttentionReceived("first:2")) as seen, Reweigh(4.0, (0,)).applied(model):
        logits(model, **inputs)
    assert seen.measurement().data["attention_received"].shape[0] == 3


def test_its_control_is_the_same_factor_elsewhere():
    model, inputs = FAMILIES["llama"].build("sdpa"), FAMILIES["llama"].inputs()
    control = Reweigh(4.0, (0, 3), heads=((1, 1),)).control(torch.Generator().manual_seed(0), model, inputs)
    assert (control.gamma, control.heads, len(control.positions)) == (4.0, ((1, 1),), 2)
    assert not {0, 3} & set(control.positions)
    assert max(control.positions) < 12


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Reweigh(-1.0), "gamma = -1.0"),
        (lambda: Reweigh(math.nan), "finite"),
        (lambda: Reweigh(2.0, ()), "positions"),
        (lambda: Reweigh(2.0, heads=((0,),)), r"expected \(layer, head\)"),
        (lambda: Reweigh(2.0, heads=()), "at least one"),
    ],
)
def test_what_has_no_meaning_is_refused(made, said):
    with pytest.raises(InputError, match=said):
        made()


@pytest.mark.parametrize("name", ["sigmoid", "gated_head", "v_bias"])
def test_weights_that_cannot_be_asked_for_are_refused(name):
    model = lab_model(name)
    with Reweigh(2.0).applied(model), pytest.raises(UnsupportedModelError, match=r"softmax|computed from"):
        logits(model, input_ids=torch.randint(3, 90, (1, 9)))


def test_a_head_that_does_not_exist_and_attention_elsewhere_are_refused():
    with (
        pytest.raises(InputError, match="head 9 does not exist"),
        Reweigh(2.0, heads=((0, 9),)).applied(FAMILIES["llama"].build()),
    ):
        pass
    with pytest.raises(UnsupportedModelError, match="custom code"), Reweigh(2.0).applied(tiny("mpt")[0]):
        pass


def test_an_attached_operation_is_calibrated_too():
    model, inputs = FAMILIES["llama"].build("sdpa"), FAMILIES["llama"].inputs()
    with Reweigh(5.0, (0, 2)).applied(model):
        expected = logits(model, **inputs)
    attach(model, CATALOG["softmax"])
    with Reweigh(5.0, (0, 2)).applied(model):
        for _ in range(2):
            torch.testing.assert_close(logits(model, **inputs), expected, rtol=1e-4, atol=1e-5)
    assert KeySlot  # slots of keys are in `test_slots_are_among_the_others`
