"""Which heads are taken out as a control: any others, those of the same layers, or those that write as much."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.interventions import (
    AnyHeads,
    FirstTokenView,
    HeadControl,
    Intervention,
    SameLayer,
    SameNorm,
    SetActivations,
    Subject,
    ZeroHeads,
    head_norms,
    largest_activations,
    named,
)
from sinkscope.trials import changed
from tests.families.registry import COLLECTED
from tests.families.test_own_attention import tiny
from tests.interventions.conftest import a_model, generator, inputs_of, logits
from tests.interventions.test_padding import alone, padded
from tests.planted.factory import F3, planted_ids, planted_model

EVERY = tuple((layer, head) for layer in range(4) for head in range(6))
CHOSEN = ((0, 1), (2, 2), (2, 4), (2, 5))
NORMS = tuple(tuple(1.5 ** (6 * layer + head) for head in range(6)) for layer in range(4))


@pytest.mark.parametrize("control", [AnyHeads(), SameLayer(), SameNorm(NORMS)], ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("seed", range(5))
def test_as_many_others_are_drawn_of_those_that_remain(control: HeadControl, seed: int) -> None:
    found = control.drawn(generator(seed), CHOSEN, EVERY)
    assert len(set(found)) == len(CHOSEN)
    assert set(found) <= set(control.remaining(CHOSEN, EVERY)) <= set(EVERY) - set(CHOSEN)
    assert found == control.drawn(generator(seed), CHOSEN, EVERY)
    assert len({control.drawn(generator(other), CHOSEN, EVERY) for other in range(20)}) > 4


def test_the_same_layers_give_as_many() -> None:
    for seed in range(10):
        found = SameLayer().drawn(generator(seed), CHOSEN, EVERY)
        assert Counter(layer for layer, _ in found) == {0: 1, 2: 3}
    assert len(SameLayer().remaining(CHOSEN, EVERY)) == 8
    with pytest.raises(InputError, match="it needs 4 other heads of layer 2, and there are 2"):
        SameLayer().drawn(generator(), [(2, head) for head in range(4)], EVERY)


def test_the_same_norm_is_one_of_the_nearest() -> None:
    for seed in range(10):
        [(layer, head)] = SameNorm(NORMS).drawn(generator(seed), [(2, 2)], EVERY)
        assert 1 <= abs(6 * layer + head - 14) <= 3, "one of three below and three above"
    total = sum(NORMS[layer][head] for layer, head in CHOSEN)

    def off(control: HeadControl) -> float:
        drawn = [control.drawn(generator(seed), CHOSEN, EVERY) for seed in range(20)]
        return sum(abs(sum(NORMS[layer][head] for layer, head in heads) / total - 1) for heads in drawn)

    assert off(SameNorm(NORMS)) < 0.7 * off(AnyHeads())


@pytest.mark.parametrize("name", ["llama", "gpt2", "bloom", "falcon"])
def test_norms_are_those_of_what_single_heads_add(name: str) -> None:
    model, inputs = (a_model(name), inputs_of(name)) if name not in COLLECTED else tiny(name)
    found = head_norms(model, inputs, batch_size=2)
    assert [len(layer) for layer in found] == [4, 4]
    block = model.transformer.h[1] if hasattr(model, "transformer") else model.model.layers[1]
    output = next(
        module for path, module in block.named_modules() if path.endswith(("o_proj", "attn.c_proj", "attention.dense"))
    )
    written: list[torch.Tensor] = []
    output.register_forward_hook(lambda module, args, out: written.append(out.detach()))
    logits(model, **inputs)
    for head in range(4):
        with ZeroHeads(((1, head),)).applied(model):
            logits(model, **inputs)
    for head in range(4):
        added = (written[0] - written[1 + head]).norm(dim=-1).mean().item()
        assert found[1][head] == pytest.approx(added, rel=1e-4)


@pytest.mark.parametrize("side", ["left", "right"])
def test_norms_leave_padding_out(side: str) -> None:
    model, given = a_model("llama"), padded("llama", side)
    row = {key: value[:1] for key, value in given.items()}
    for found, wanted in zip(head_norms(model, row), head_norms(model, alone(row, side)), strict=True):
        assert found == pytest.approx(wanted, rel=1e-4)


@pytest.mark.slow
def test_controls_of_a_trial_all_differ() -> None:
    model, inputs = a_model("llama"), inputs_of("llama")

    def heads(intervention: Intervention, controls: int) -> list[list[list[int]]]:
        trial = changed(model, inputs, intervention, controls=controls)
        return [trial.record["arms"][name]["heads"] for name in trial.controls("ZeroHeads")]

    others = [[[layer, head]] for layer in (0, 1) for head in range(4) if (layer, head) != (0, 1)]
    assert sorted(heads(ZeroHeads(((0, 1),)), 7)) == others
    assert sorted(heads(ZeroHeads(((0, 1),)), 8)) == others, "as many as there are"
    assert len(heads(ZeroHeads(((0, 1),), against=SameLayer()), 5)) == 3
    trial = changed(model, inputs, FirstTokenView(4), controls=15)
    assert len({str(trial.record["arms"][name]) for name in trial.arms[1:]}) == 16


def subject(**options: object) -> Subject:
    """On the planted model most heads are sinks at a small threshold."""
    return Subject(planted_model(F3), planted_ids(F3), **{"epsilon": 0.01, **options})


def test_where_most_heads_are_sinks_the_way_round_is_named() -> None:
    every = named("zero-sink-heads", subject())
    assert every.control == "as many other heads of any layer, of 0 that remain (0 of them sinks too)"
    with pytest.raises(InputError, match=r"needs 16 other heads, and there are 0: choose fewer, at most 7"):
        changed(planted_model(F3), planted_ids(F3), every.intervention)
    found = named("zero-sink-heads", subject(strongest=7))
    assert len(found.intervention.heads) == 7
    assert "of 16 sink heads" in found.remark
    assert found.control == "as many other heads of any layer, of 9 that remain (9 of them sinks too)"
    trial = changed(planted_model(F3), planted_ids(F3), found.intervention, controls=3)
    assert trial.cost("ZeroHeads").value > 0


def test_heads_are_chosen_by_layer_strength_and_name() -> None:
    strongest = named("zero-sink-heads", subject(epsilon=0.3)).intervention.heads
    assert set(strongest) == set(F3.attending(4, 4))
    for count in (1, 2):
        assert named("zero-sink-heads", subject(epsilon=0.3, strongest=count)).intervention.heads == strongest[:count]
    layer = strongest[0][0]
    found = named("zero-sink-heads", subject(epsilon=0.3, layers=(layer,), control="layer"))
    assert found.intervention.heads == tuple(head for head in strongest if head[0] == layer)
    assert found.intervention.against == SameLayer()
    assert found.control.startswith("as many other heads of the same layers, of ")
    exact = named("zero-sink-heads", subject(epsilon=0.3, heads=((0, 0), strongest[0]), control="norm"))
    assert exact.intervention.heads == ((0, 0), strongest[0])
    assert isinstance(exact.intervention.against, SameNorm)
    assert exact.remark.endswith("; 1 of them sinks")


def test_bad_choices_are_one_clear_line() -> None:
    for options, match in [
        ({"layers": (9,)}, "layer 9 does not exist: .* 0 to 3"),
        ({"heads": ((0, 9),)}, r"head 0\.9 does not exist: .* 0\.0 to 3\.3"),
        ({"heads": ((0, 1),), "strongest": 1}, "not both"),
        ({"strongest": 0}, "strongest = 0: expected at least 1"),
        ({"strongest": 1, "control": "other"}, "control 'other': expected one of any, layer, norm"),
        ({"epsilon": 0.3, "layers": (0,)}, "no head of layers 0 is a sink; the layers that have some: "),
    ]:
        with pytest.raises(InputError, match=match):
            named("zero-sink-heads", subject(**options))
    with pytest.raises(InputError, match=r"head 0\.1 has no norm: use SameNorm\.of"):
        SameNorm(((1.0,),)).drawn(generator(), [(0, 0)], [(0, 0), (0, 1)])


def test_a_stream_that_no_list_of_blocks_holds_is_refused_with_what_was_looked_for() -> None:
    model = COLLECTED["xlm"].build()
    inputs = COLLECTED["xlm"].inputs()
    refusal = pytest.raises(UnsupportedModelError, match=r"family 'xlm': no list of blocks was found \(looked for ")
    with refusal:
        largest_activations(model, inputs)
    with refusal, SetActivations(((1, 0, 0),)).applied(model):
        pass
