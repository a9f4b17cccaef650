"""What a streaming cache could get wrong without anybody noticing, each by what fails."""

from __future__ import annotations

import gc
import weakref
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, StaticCache

import sinkscope
from sinkscope.caches import StreamingCache, streaming
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.model import LabConfig, LabForCausalLM
from tests.caches import contract
from tests.caches.contract import TOLERANCE, error, ids
from tests.caches.families import EVERY, REFUSALS, slow_but, with_options
from tests.caches.test_streaming import stepped
from tests.families.registry import COLLECTED, FAMILIES

OPTIONS: dict[str, Any] = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False, "pad_token_id": 0}


@pytest.fixture(scope="module")
def llama() -> Any:
    return FAMILIES["llama"].build("sdpa")


def test_generate_would_read_everything_at_each_step(llama: Any) -> None:
    with pytest.raises(InputError, match="use_cache is False"):
        llama.generate(ids(), past_key_values=StreamingCache(llama, 2, 6), use_cache=False, **OPTIONS)
    mpt = COLLECTED["mpt"].build("eager")
    mpt.config.use_cache = mpt.generation_config.use_cache = False
    with pytest.raises(InputError, match="use_cache is False"):
        mpt.generate(ids(), past_key_values=StreamingCache(mpt, 2, 6), **OPTIONS)


def test_positions_are_given_where_a_family_would_count_from_zero() -> None:
    bamba = FAMILIES["bamba"].build("sdpa")
    given: list[int] = []
    bamba.model.register_forward_pre_hook(
        lambda module, args, kwargs: given.append(int(kwargs["position_ids"][0, 0])), with_kwargs=True
    )
    stepped(bamba, ids(1, 9), StreamingCache(bamba, 2, 4))
    assert given[-9:] == list(range(9))


def test_positions_that_do_not_go_on_are_refused(llama: Any) -> None:
    cache = StreamingCache(llama, 2, 6)
    stepped(llama, ids(1, 12), cache)
    with torch.no_grad(), pytest.raises(InputError, match="position_ids start at"):
        llama(ids(1, 1), past_key_values=cache, position_ids=torch.tensor([[7]]))  # how many keys there are


def test_the_same_prompt_again_is_refused(llama: Any) -> None:
    cache = StreamingCache(llama, 2, 6)
    with torch.no_grad():
        llama(ids(), past_key_values=cache)
    with pytest.raises(InputError, match="position_ids start at"):
        llama.generate(ids(), past_key_values=cache, **OPTIONS)
    assert cache.get_seq_length() == ids().shape[1]


@pytest.mark.parametrize(
    ("name", "reason"), [("gemma3", "a window of its own, 5 tokens"), ("bamba", "a state of fixed size")]
)
def test_layers_that_do_not_stream_are_left_alone_and_said(logged: list[str], name: str, reason: str) -> None:
    streaming._warned.clear()
    model = FAMILIES[name].build("sdpa")
    caches = [StreamingCache(model, 2, 60) for _ in range(2)]
    assert caches[0].left_alone == {0: reason}
    assert [f"1 of the 2 layers of family '{model.config.model_type}" in line for line in logged] == [True]
    assert reason in logged[0]


@pytest.mark.parametrize("name", slow_but(("mistral", "deepseek_v32", "mamba"), REFUSALS))
def test_models_that_would_be_wrong_are_refused_by_name(name: str) -> None:
    if not EVERY[name].exists:
        pytest.skip(f"the installed transformers has no {EVERY[name].config}")
    assert REFUSALS[name] in contract.refusal(name)


def test_a_window_that_is_switched_off_is_no_window() -> None:
    model = with_options("mistral", sliding_window=None).build("sdpa")
    assert len(StreamingCache(model, 2, 6).followed) == 2


def test_length_is_what_was_seen_and_masks_what_is_kept(llama: Any) -> None:
    cache = StreamingCache(llama, 2, 6)
    with torch.no_grad():
        llama(ids(1, 20), past_key_values=cache)
    assert cache.get_seq_length() == 20
    assert cache.get_mask_sizes(1, 0) == (8, 13)
    assert cache.get_mask_sizes(5, 0) == (12, 13)
    with torch.no_grad():  # several tokens at once, under a mask of that size
        llama(ids(1, 5), past_key_values=cache)
    assert cache.get_seq_length() == 25


def test_no_view_holds_the_prompt(llama: Any) -> None:
    cache = StreamingCache(llama, 2, 6)
    with torch.no_grad():
        llama(ids(1, 29).repeat(1, 20), past_key_values=cache)
    for layer in cache.followed:
        held = [tensor for pair in (layer._buffers, layer.first, (layer.keys, layer.values)) for tensor in pair]
        assert max(tensor.untyped_storage().nbytes() for tensor in held) <= 4 * 2 * 8 * (2 + 6 + 64)


def test_beams_with_room_for_everything_are_those_of_a_full_cache(llama: Any) -> None:
    options = {**OPTIONS, "num_beams": 3, "num_return_sequences": 3}
    wanted = llama.generate(ids(2), past_key_values=DynamicCache(config=llama.config), **options)
    assert torch.equal(llama.generate(ids(2), past_key_values=StreamingCache(llama, 2, 60), **options), wanted)


@pytest.mark.slow
def test_limited_beams_are_what_each_of_them_is_alone(llama: Any) -> None:
    """The sum of log-probabilities of every returned text is that of the text read by itself."""
    prompt = ids(2, 11)
    out = llama.generate(
        prompt,
        past_key_values=StreamingCache(llama, 2, 5),
        **{**OPTIONS, "num_beams": 4, "num_return_sequences": 4, "length_penalty": 0.0},
        return_dict_in_generate=True,
        output_scores=True,
    )
    for text, score in zip(out.sequences, out.sequences_scores, strict=True):
        logits = stepped(llama, text[None], StreamingCache(llama, 2, 5), 0)[0, 10:22]
        chosen = logits.log_softmax(-1).gather(1, text[11:23, None])
        assert float(chosen.sum()) == pytest.approx(float(score), abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "falcon_h1"])
def test_rows_that_are_chosen_or_repeated_go_on_as_themselves(name: str) -> None:
    model, tokens = contract.built(name, "sdpa"), ids(3, 24)
    mask = torch.stack([(torch.arange(24) >= pad).long() for pad in (0, 3, 6)])

    def opened() -> StreamingCache:
        cache = StreamingCache(model, 2, 6)
        with torch.no_grad():
            model(tokens[:, :12], attention_mask=mask[:, :12], past_key_values=cache, use_cache=True)
        stepped(model, tokens[:, :15], cache, 12, attention_mask=mask[:, :15])
        return cache

    wanted = stepped(model, tokens, opened(), 15, attention_mask=mask)
    chosen, repeated = opened(), opened()
    order = torch.tensor([2, 0])
    chosen.batch_select_indices(order)
    found = stepped(model, tokens[order], chosen, 15, attention_mask=mask[order])
    assert error(found, wanted[order]) <= TOLERANCE
    repeated.batch_repeat_interleave(2)
    twice = torch.tensor([0, 0, 1, 1, 2, 2])
    found = stepped(model, tokens[twice], repeated, 15, attention_mask=mask[twice])
    assert error(found, wanted[twice]) <= TOLERANCE


def test_a_cache_that_is_reset_begins_anew(llama: Any) -> None:
    cache = StreamingCache(llama, 2, 6)
    wanted = stepped(llama, ids(2), cache)
    cache._origin.base = 4
    cache.reset()
    assert torch.equal(stepped(llama, ids(2), cache), wanted)


@torch.no_grad()
def test_inference_mode_may_come_and_go(llama: Any) -> None:
    wanted = stepped(llama, ids(), StreamingCache(llama, 2, 6))
    cache = StreamingCache(llama, 2, 6)
    with torch.inference_mode():
        found = [stepped(llama, ids()[:, :15], cache)]
    found.append(stepped(llama, ids(), cache, 15))
    assert torch.equal(torch.cat(found, 1), wanted)
    assert not any(tensor.is_inference() for tensor in cache.followed[0]._buffers or ())


def test_gradients_do_not_go_through(llama: Any) -> None:
    with pytest.raises(InputError, match="no_grad"):
        llama(ids(), past_key_values=StreamingCache(llama, 2, 6))


@pytest.mark.slow
def test_a_cache_holds_no_model_and_its_copies_go_on() -> None:
    model = FAMILIES["llama"].build("sdpa")
    cache = StreamingCache(model, 2, 6)
    stepped(model, ids(1, 15), cache)
    copy = deepcopy(cache)
    wanted = stepped(model, ids(), cache, 15)
    assert torch.equal(stepped(model, ids(), copy, 15), wanted)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_what_was_dropped_cannot_be_taken_back(llama: Any) -> None:
    with pytest.raises(ValueError, match="cropped"):  # transformers itself asks from 5.24 on
        llama.generate(ids(), past_key_values=StreamingCache(llama, 2, 6), prompt_lookup_num_tokens=3, **OPTIONS)


def test_it_is_not_moved_away(llama: Any) -> None:
    with pytest.raises(InputError, match="cannot be offloaded"):
        StreamingCache(llama, 2, 6).followed[0].offload()


def test_a_cache_of_another_model_is_refused(llama: Any) -> None:
    other = FAMILIES["llama"].build("sdpa")
    with pytest.raises(InputError, match="call that model itself"):
        other.generate(ids(), past_key_values=StreamingCache(llama, 2, 6), **OPTIONS)


def test_a_fixed_length_and_a_stream_exclude_each_other(llama: Any) -> None:
    with pytest.raises(ValueError, match="cache_implementation"):
        llama.generate(ids(), past_key_values=StreamingCache(llama, 2, 6), cache_implementation="static", **OPTIONS)
    assert not isinstance(StreamingCache(llama, 2, 6), StaticCache)


@pytest.mark.slow
def test_llama_4_scales_by_the_place_in_the_text() -> None:
    """Its layers without positions count all tokens that were seen, not those that are kept."""
    row = contract.check("llama4, mixed", "sdpa")
    assert row.holds


@pytest.mark.slow
@torch.no_grad()
def test_the_lab_model_streams_and_is_observed(llama: Any) -> None:
    """As its twin among transformers' models does, and with every key at its place."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    lab = LabForCausalLM(LabConfig(vocab_size=97, intermediate_size=48, **sizes)).eval()
    twin = lab.to_llama().eval()
    received: list[Tensor] = []
    logits, visible = [], []
    for model in (lab, twin):
        cache = StreamingCache(model, 2, 6)
        with sinkscope.observe(model, sinkscope.AttentionReceived(positions="all")) as seen:
            logits.append(stepped(model, ids(1, 20), cache))
        data = seen.measurement().data
        received.append(torch.from_numpy(data["attention_received"].values))
        visible.append(torch.from_numpy(data["visible_queries"].values))
    assert error(logits[0], logits[1]) <= TOLERANCE
    torch.testing.assert_close(received[0], received[1], rtol=0, atol=1e-5)
    # A token is seen by as many queries as the window is long, a sink by all that follow.
    queries = torch.arange(20, 0, -1)
    queries[2:].clamp_(max=6)
    for counted in visible:
        torch.testing.assert_close(counted, queries.expand_as(counted), check_dtype=False)
    seen_mass = received[1][0] * queries
    torch.testing.assert_close(seen_mass.sum(-1), torch.full_like(seen_mass[..., 0], 20.0), rtol=0, atol=1e-3)


@torch.no_grad()
def test_no_measurement_counts_the_pass_that_measures_the_model(llama: Any) -> None:
    with sinkscope.observe(llama, sinkscope.AttentionReceived(positions="all"), sinkscope.HiddenNorms()) as seen:
        cache = StreamingCache(llama, 2, 6)
        llama(ids(2, 12), past_key_values=cache)
    found = seen.measurement().data
    assert dict(found.sizes)["sample"] == 2
    assert dict(found.sizes)["position"] == 12


@pytest.mark.parametrize("position", ["alibi", "relative_t5", "learned"])
def test_lab_models_whose_positions_go_on_are_refused(position: str) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}
    with pytest.raises(UnsupportedModelError, match="position"):
        StreamingCache(LabForCausalLM(LabConfig(vocab_size=97, position=position, **sizes)))


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"window": 0}, "window = 0"),
        ({"sinks": -1}, "sinks = -1"),
        ({"distance": "cahce"}, "did you mean 'cache'"),
    ],
)
def test_arguments_without_a_meaning_are_refused(llama: Any, given: dict[str, Any], match: str) -> None:
    with pytest.raises(InputError, match=match):
        StreamingCache(llama, **given)
