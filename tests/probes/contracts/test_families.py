"""Every family's tiny model, measured, agrees with the attention maps of its own eager attention."""

from __future__ import annotations

import pytest
import torch

from sinkscope.errors import UnsupportedModelError
from sinkscope.probes import AttentionReceived, SlotReceived, measure, observe
from sinkscope.probes.contracts import contract
from sinkscope.probes.contracts.families import FAMILIES, LEGACY

CASES = [(name, host) for name, family in FAMILIES.items() for host in family.hosts]


@pytest.mark.parametrize(("name", "host"), CASES)
def test_attention_received_agrees_with_eager_maps(name: str, host: str) -> None:
    if not FAMILIES[name].exists:
        pytest.skip(f"the installed transformers has no family {name}")
    row = contract.check(name, host)
    assert row.calls == row.layers
    assert row.error <= 1e-5
    assert row.logits_unchanged
    assert row.peak > 2, "attention must be far from uniform for this comparison to mean something"


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt_oss", "granite_swa", "deepseek_v3", "jamba", "bert", "t5"])
def test_chosen_positions_are_those_of_the_whole_profile(name: str) -> None:
    family = FAMILIES[name]
    for host in family.hosts:
        model, inputs = family.build(host), family.inputs()
        whole = measure(model, inputs, [AttentionReceived()]).data["attention_received"]
        some = measure(model, inputs, [AttentionReceived([0, 3])]).data["attention_received"]
        assert some["position"].values.tolist() == [0, 3]
        assert float(abs(some - whole.sel(position=[0, 3])).max()) < 1e-6


@pytest.mark.parametrize("name", ["gpt_oss", "granite_swa"])
def test_learned_sinks_take_what_the_tokens_do_not(name: str) -> None:
    family = FAMILIES[name]
    maps = contract.eager_maps(family, family.inputs())["decoder"]
    slot = measure(family.build(), family.inputs(), [SlotReceived()]).data["slot_received"]
    for layer, weights in enumerate(maps):
        torch.testing.assert_close(
            torch.from_numpy(slot.values[:, layer]), 1 - weights.sum(-1).mean(-1), atol=1e-6, rtol=0
        )


def test_hybrids_keep_the_models_own_layer_numbers() -> None:
    family = FAMILIES["jamba"]
    data = measure(family.build(), family.inputs()).data
    assert data["layer_index"].values.tolist() == [1, 3]
    assert data.sizes["depth"] == 5, "blocks without attention belong to the residual stream too"


def test_stacks_of_an_encoder_decoder_have_their_own_lengths() -> None:
    family = FAMILIES["t5"]
    data = measure(family.build("sdpa"), family.inputs()).data
    assert data["stack"].values.tolist() == ["encoder"] * 2 + ["decoder"] * 2 + ["cross"] * 2
    assert data["tokens"].values[0].tolist() == [24, 24, 19, 19, 24, 24]
    assert data["depth_stack"].values.tolist() == ["encoder"] * 3 + ["decoder"] * 3


def test_a_layer_that_is_used_twice_is_two_layers() -> None:
    family = FAMILIES["albert"]
    data = measure(family.build(), family.inputs()).data
    assert data["layer_index"].values.tolist() == [0, 1]
    assert data["layer_name"].values[1] == data["layer_name"].values[0] + "#1"


@pytest.mark.parametrize("name", LEGACY)
def test_families_outside_the_interface_are_refused_by_name(name: str) -> None:
    model = LEGACY[name].build()
    with pytest.raises(UnsupportedModelError, match=rf"family '{model.config.model_type}'.*output_attentions=True"):
        observe(model, AttentionReceived()).__enter__()


def test_a_model_without_attention_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="family 'Linear' has no attention layer"):
        observe(torch.nn.Linear(2, 2)).__enter__()


@pytest.mark.slow
def test_the_table_of_the_docs_has_a_line_per_family_and_implementation() -> None:
    lines = contract.table().splitlines()
    assert len(lines) == 2 + len(CASES) + len(LEGACY)
    assert not any("NO" in line for line in lines)
