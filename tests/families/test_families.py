"""Every family's tiny model, measured, agrees with the attention maps of its own eager attention."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sinkscope.errors import UnsupportedModelError
from sinkscope.measurement import AttentionReceived, SlotReceived, measure, observe
from tests.families import contract
from tests.families.contract import Row
from tests.families.reference import eager_maps
from tests.families.registry import FAMILIES, KINDS, Family, Host

CASES = [(name, host) for name, family in FAMILIES.items() for host in family.hosts]


def checked(name: str, host: str) -> Row:
    """The family's row; skipped, with the reason, where the installed transformers cannot have it."""
    if reason := FAMILIES[name].obstacle(host):
        pytest.skip(f"{name}: {reason}")
    return contract.check(name, host)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "host"), CASES)
def test_attention_received_agrees_with_eager_maps(name: str, host: str) -> None:
    row = checked(name, host)
    assert row.calls == row.layers
    assert row.error <= 1e-5
    assert row.logits_unchanged
    assert row.peak > 2, "attention must be far from uniform for this comparison to mean something"
    assert row.holds


def test_there_are_enough_families_of_every_kind() -> None:
    assert len(FAMILIES) >= 45
    assert all(KINDS.values())
    assert sum(map(len, KINDS.values())) == len(FAMILIES), "a name stands in two kinds"


@pytest.mark.parametrize(
    ("version", "reason"), [("5.17.0", "differ from those under eager"), ("5.23.0", None), ("5.23.1", None)]
)
def test_a_host_that_older_transformers_break_is_skipped_there(
    version: str, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.families.family.transformers.__version__", version)  # which is imported anew at times
    found = FAMILIES["doge"].obstacle("sdpa")
    assert found is reason or (reason and reason in found)
    assert FAMILIES["doge"].obstacle("eager") is None
    assert "has no Nonsense" in str(Family("Nonsense").obstacle("eager"))


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt_oss", "granite_swa", "deepseek_v3", "jamba", "bert", "t5"])
def test_chosen_positions_are_those_of_the_whole_profile(name: str) -> None:
    family = FAMILIES[name]
    for host in family.hosts:
        model, inputs = family.build(host), family.inputs()
        whole = measure(model, inputs, [AttentionReceived()]).data["attention_received"]
        some = measure(model, inputs, [AttentionReceived([0, 3])]).data["attention_received"]
        assert some["position"].values.tolist() == [0, 3]
        assert float(abs(some - whole.sel(position=[0, 3])).max()) < 1e-6


@pytest.mark.parametrize("name", ["gpt_oss", "granite_swa", "granitemoe_swa", "inkling2", "deepseek_v4_sliding"])
def test_learned_sinks_take_what_the_tokens_do_not(name: str) -> None:
    if reason := FAMILIES[name].obstacle("eager"):
        pytest.skip(f"{name}: {reason}")
    family = FAMILIES[name]
    maps = eager_maps(family, family.inputs())["decoder"]
    slot = measure(family.build(), family.inputs(), [SlotReceived()]).data["slot_received"]
    for layer, weights in enumerate(maps):
        torch.testing.assert_close(
            torch.from_numpy(slot.values[:, layer]), 1 - weights.sum(-1).mean(-1), atol=2e-6, rtol=0
        )


@pytest.mark.parametrize("host", ["eager", "sdpa"])
def test_where_every_layer_attends_in_chunks_a_chunk_is_a_sample(host: Host) -> None:
    """What no layer lets see another is a document of its own, whoever wrote the mask; one full layer joins them."""
    chunked = FAMILIES["llama4"]
    mixed = replace(chunked, options={**chunked.options, "no_rope_layer_interval": 2})
    model, ids = chunked.build(host), chunked.inputs()["input_ids"]
    data = measure(model, ids, [AttentionReceived()]).data
    assert data["row"].values.tolist() == [row for row in range(3) for _ in range(3)]
    assert data["start"].values.tolist() == [0, 8, 16] * 3
    alone = measure(model, ids.reshape(9, 8), [AttentionReceived()]).data
    for name in ("attention_received", "visible_queries", "uniform_received"):
        torch.testing.assert_close(torch.from_numpy(data[name].values), torch.from_numpy(alone[name].values))
    whole = measure(mixed.build(host), ids, [AttentionReceived()]).data
    assert whole.sizes["sample"] == 3
    assert whole["visible_queries"].values[0].tolist() == [[*range(8, 0, -1)] * 3, [*range(24, 0, -1)]]


@pytest.mark.parametrize("name", ["deepseek_v32", "glm_moe_dsa", "axk2", "minimax_m3"])
def test_keys_that_no_query_selects_have_no_number_and_stay_where_they_are(name: str) -> None:
    """An index hides what it leaves out like any mask does; such a key is no padding, and moves nothing."""
    family = FAMILIES[name]
    data = measure(family.build("sdpa"), family.inputs(), [AttentionReceived()]).data
    assert (data["tokens"].values == 24).all()
    seen = data["visible_queries"].values
    assert (seen.max(-1) < 24).all(), "the index must leave out keys for this to mean something"
    unseen = torch.from_numpy(seen == 0)[:, :, None].expand(data["attention_received"].shape)
    assert torch.equal(torch.from_numpy(data["attention_received"].values).isnan(), unseen)


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


@pytest.mark.parametrize("name", ["layoutlm", "bert_decoder"])
def test_layers_that_do_not_say_whether_they_are_causal_are_told_by_their_cache(name: str) -> None:
    family = FAMILIES[name]
    data = measure(family.build(), family.inputs(), [AttentionReceived()]).data
    assert set(data["stack"].values.tolist()) == {"decoder" if name == "bert_decoder" else "encoder"}


@pytest.mark.parametrize(
    ("name", "stack", "reason"),
    [("longt5", "encoder", "attention of its own"), ("qwen2_vl", "vision", "1 rows are not the model's 3 samples")],
)
def test_a_stack_without_numbers_is_named_in_the_record(name: str, stack: str, reason: str) -> None:
    family = FAMILIES[name]
    measurement = measure(family.build(), family.inputs(), [AttentionReceived()])
    assert stack not in measurement.data["stack"].values
    assert reason in measurement.record["not_measured"][stack]


def test_a_model_without_attention_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="family 'Linear' has no attention layer"):
        observe(torch.nn.Linear(2, 2)).__enter__()
