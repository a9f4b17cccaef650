"""Families outside transformers' attention interface: measured from the maps that they return, or refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from sinkscope.errors import UnsupportedModelError
from sinkscope.measurement import AttentionReceived, HiddenNorms, QueryKeyValueNorms, measure, observe
from sinkscope.measurement.observers.entropy import AttentionEntropy
from tests.families import contract
from tests.families.recording import Softmaxes
from tests.families.reference import eager_attention
from tests.families.registry import COLLECTED, REFUSED

CACHED = ["bloom", "mpt", "falcon", "gptj", "gpt_neo", "codegen", "xglm"]
PADDED = ["bloom", "falcon", "gptj", "xglm", "roformer", "deberta_v2", "mpnet"]


def tiny(name: str) -> tuple[PreTrainedModel, dict[str, torch.Tensor]]:
    """A collected family's model and inputs; skipped where the installed transformers has none."""
    if reason := COLLECTED[name].obstacle("eager"):
        pytest.skip(f"{name}: {reason}")
    return COLLECTED[name].build(), COLLECTED[name].inputs()


@pytest.mark.slow
@pytest.mark.parametrize("name", COLLECTED)
def test_attention_received_is_that_of_the_returned_maps(name: str) -> None:
    tiny(name)
    row = contract.check(name, "eager")
    assert row.holds


@pytest.mark.slow
@pytest.mark.parametrize("name", COLLECTED)
def test_the_returned_maps_are_softmaxes_that_the_model_computed(name: str) -> None:
    model, inputs = tiny(name)
    with Softmaxes() as computed, torch.no_grad():
        output = model(**inputs, output_attentions=True)
    maps = [weights for key in output if key.endswith("attentions") for weights in output[key]]
    assert all(computed.visible(weights) is not None for weights in maps)


@pytest.mark.slow
@pytest.mark.parametrize("name", COLLECTED)
@pytest.mark.parametrize("as_tuple", [False, True])
def test_the_caller_gets_what_they_asked_for(name: str, as_tuple: bool) -> None:
    model, inputs = tiny(name)
    for asked in ({}, {"output_attentions": True}):
        with torch.no_grad():
            plain = model(**inputs, **asked, return_dict=not as_tuple)
            with observe(model, AttentionReceived()):
                seen = model(**inputs, **asked, return_dict=not as_tuple)
        assert type(plain) is type(seen)
        if not as_tuple:
            assert list(plain) == list(seen)
            plain, seen = plain.to_tuple(), seen.to_tuple()
        assert_identical(plain, seen)


def assert_identical(one: Any, other: Any) -> None:
    """Equal to the last bit, tuple in tuple; caches hold no outputs."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_identical(left, right)


@pytest.mark.parametrize("name", PADDED)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_counts_neither_as_query_nor_as_position(name: str, side: str) -> None:
    model, inputs = tiny(name)
    ids = inputs["input_ids"][:2].clone()
    mask, real = torch.ones_like(ids), slice(6, 24) if side == "left" else slice(0, 18)
    mask[1] = 0
    mask[1, real] = 1
    given = {"input_ids": ids * mask, "attention_mask": mask}
    # A table that counts columns is told the positions of real tokens.
    places = {"position_ids": (mask.cumsum(-1) - 1).clamp(min=0)} if name == "deberta_v2" else {}
    with torch.no_grad():
        maps = model(**given, **places, output_attentions=True).attentions
    data = measure(model, given, [AttentionReceived(), AttentionEntropy()]).data
    found, entropy = (torch.from_numpy(data[key].values) for key in ("attention_received", "attention_entropy"))
    causal = data["stack"].values[0] == "decoder"
    for layer, weights in enumerate(maps):
        own = weights[1, :, real, real].double()
        wanted = torch.stack([own[..., key].sum(-1) / (18 - key if causal else 18) for key in range(18)], -1)
        torch.testing.assert_close(found[1, layer, :, :18].double(), wanted, atol=1e-5, rtol=0)
        rows = -(own * own.clamp(min=1e-300).log()).sum(-1)
        torch.testing.assert_close(entropy[1, layer].double(), rows.mean(-1), atol=1e-4, rtol=0)
    assert bool(found[1, ..., 18:].isnan().all())
    assert data["tokens"].values.tolist() == [[24, 24], [18, 18]]


@pytest.mark.parametrize("name", CACHED)
def test_decoding_step_by_step_counts_what_one_pass_does(name: str) -> None:
    model, inputs = tiny(name)
    ids = inputs["input_ids"][:, :8]
    whole = measure(model, ids, [AttentionReceived()]).data["attention_received"].values
    with observe(model, AttentionReceived()) as seen, torch.no_grad():
        output = model(ids[:, :5], use_cache=True)
        for step in range(5, 8):
            output = model(ids[:, step : step + 1], past_key_values=output.past_key_values, use_cache=True)
    data = seen.measurement().data
    assert set(data["stack"].values.tolist()) == {"decoder"}
    assert abs(data["attention_received"].values - whole).max() < 2e-5


def test_generating_counts_the_encoder_not_again() -> None:
    model, inputs = tiny("mvp")
    with observe(model, AttentionReceived()) as seen:
        model.generate(inputs["input_ids"], max_new_tokens=4, min_new_tokens=4, num_beams=1, output_attentions=True)
    data = seen.measurement().data
    assert set(data["stack"].values.tolist()) == {"decoder", "cross"}
    assert float(data["attention_received"].max()) <= 1 + 1e-5


def test_norms_of_the_residual_stream_are_read_from_the_blocks() -> None:
    model, inputs = tiny("bloom")
    with torch.no_grad():
        states = model(**inputs, output_hidden_states=True).hidden_states
    data = measure(model, inputs, [HiddenNorms(), AttentionReceived()]).data
    assert data["layer_name"].values.tolist() == ["transformer.h.0", "transformer.h.1"]
    norms = torch.from_numpy(data["hidden_norm"].values)
    assert norms.shape == (3, 3, 24)
    torch.testing.assert_close(norms[:, 0], states[0].norm(dim=-1))


@pytest.mark.parametrize("name", ["xlm", "xlnet"])
def test_a_stream_that_no_list_of_blocks_holds_is_said_not_to_be_measured(name: str) -> None:
    model, inputs = tiny(name)
    measurement = measure(model, inputs, [HiddenNorms(), AttentionReceived()])
    assert "hidden_norm" not in measurement.data
    assert "weights are all that can be read" in measurement.record["not_measured"]["HiddenNorms"]


def test_observers_of_queries_and_keys_yield_nothing_where_these_are_unknown_and_the_record_says_so() -> None:
    model, inputs = tiny("deberta_v2")
    measurement = measure(model, inputs, [AttentionReceived(), QueryKeyValueNorms(), AttentionEntropy()])
    assert "query_norm" not in measurement.data
    assert "attention_entropy" in measurement.data
    assert list(measurement.record["not_measured"]) == ["QueryKeyValueNorms"]


@pytest.mark.parametrize("positions", ["first:4", [0, 3]])
def test_chosen_positions_are_those_of_the_whole_profile(positions: Any) -> None:
    model, inputs = tiny("mpt")
    whole = measure(model, inputs, [AttentionReceived()]).data["attention_received"]
    some = measure(model, inputs, [AttentionReceived(positions)]).data["attention_received"]
    assert float(abs(some - whole.sel(position=some["position"])).max()) < 1e-6


def test_bidirectional_layers_are_told_by_their_maps() -> None:
    for name, causal in (("deberta_v2", False), ("bloom", True)):
        model, inputs = tiny(name)
        [maps] = eager_attention(COLLECTED[name], inputs).values()
        found = measure(model, inputs, [AttentionReceived()]).data
        assert set(found["stack"].values.tolist()) == {"decoder" if causal else "encoder"}
        wanted = torch.stack([each.received for each in maps], 1)
        torch.testing.assert_close(torch.from_numpy(found["attention_received"].values), wanted)


def test_the_callers_own_hooks_do_not_see_what_was_asked_for() -> None:
    model, inputs = tiny("falcon")
    seen: list[Any] = []
    hook = model.register_forward_hook(lambda module, args, output: seen.append(output.attentions))
    with observe(model, AttentionReceived()), torch.no_grad():
        model(**inputs)
    hook.remove()
    assert seen == [None]


def test_half_precision_rows_are_accepted() -> None:
    model = COLLECTED["bloom"].build(dtype=torch.bfloat16)
    data = measure(model, COLLECTED["bloom"].inputs(), [AttentionReceived()]).data
    assert data["attention_received"].dtype == "float32"


def test_maps_with_dropout_are_refused() -> None:
    model, inputs = tiny("gpt_neo")
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    model.train()
    with pytest.raises(UnsupportedModelError, match=r"do not sum to one .* model.eval\(\)"), observe(model):
        model(**inputs)


def test_another_implementation_is_refused_before_anything_runs() -> None:
    with pytest.raises(UnsupportedModelError, match=r"attn_implementation='sdpa'.*load it with .*'eager'"):
        observe(COLLECTED["falcon"].build("sdpa")).__enter__()


def test_after_a_refusal_the_model_is_as_before() -> None:
    model, inputs = REFUSED["squeezebert"].build(), REFUSED["squeezebert"].inputs()
    with pytest.raises(UnsupportedModelError), observe(model, AttentionReceived()):
        model(**inputs)
    assert model(**inputs).attentions is None
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_wrong_is_refused_by_name(name: str) -> None:
    family = REFUSED[name]
    if reason := family.obstacle("eager"):
        pytest.skip(f"{name}: {reason}")
    reason = contract.refusal(name)
    assert reason.startswith(f"family '{family.build().config.model_type}'")
    assert "\n" not in reason
