"""Sink tokens in front of hub models and registers in image models: seen by all, dropped at the end, measured."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

import sinkscope as ss
from sinkscope.errors import InputError, UnsupportedModelError
from tests.model.attached.hosts import host, inputs, output, stir

RELATIVE = ["llama", "qwen2", "qwen3", "qwen3_moe", "mixtral", "gemma", "olmo2", "phi3", "stablelm", "gpt_neox"]
COUNTED = ["gpt2", "opt"]
COUNT = 3


def equipped(name: str, operation: str = "softmax") -> PreTrainedModel:
    model = host(name)
    ss.attach(model, operation, sink_tokens=COUNT, start="as_is", seed=0)
    stir(model)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if path.endswith(("sink_tokens.sink_tokens", "register_tokens")):
                parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(4)))
    return model


def tokens_of(model: PreTrainedModel) -> Tensor:
    return next(p for path, p in model.named_parameters() if path.endswith((".sink_tokens", ".register_tokens")))


@torch.no_grad()
@pytest.mark.parametrize("name", RELATIVE + COUNTED)
def test_they_are_three_tokens_in_front(name: str) -> None:
    """The plain host on a sequence that begins with three embeddings more, of which nothing is read afterwards."""
    model, plain, ids = equipped(name), host(name, "eager"), inputs(name)["input_ids"]
    front = tokens_of(model).expand(len(ids), -1, -1)
    embedded = torch.cat([front, plain.get_input_embeddings()(ids)], 1)
    given = {"inputs_embeds": embedded, "attention_mask": torch.ones(embedded.shape[:2], dtype=torch.long)}
    if name in COUNTED:  # all at the first position, the text where it was
        given["position_ids"] = (torch.arange(embedded.shape[1]) - COUNT).clamp(min=0)[None].expand(len(ids), -1)
    wanted = plain(**given).logits[:, COUNT:]
    torch.testing.assert_close(model(ids).logits, wanted, atol=3e-5, rtol=1e-4)
    assert (model(ids).logits - host(name)(ids).logits).abs().max() > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("name", RELATIVE + COUNTED)
def test_caches_and_padding_change_nothing(name: str) -> None:
    model, ids = equipped(name, "kv_bias"), inputs(name)["input_ids"]
    whole, past = model(ids).logits, DynamicCache()
    parts = [model(part, past_key_values=past).logits for part in ids.split([7, 1, ids.shape[1] - 8], 1)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=5e-5, rtol=1e-4)
    padded = torch.cat([torch.full_like(ids[:, :4], 5), ids], 1)
    mask = torch.cat([torch.zeros_like(ids[:, :4]), torch.ones_like(ids)], 1)
    places = (mask.cumsum(-1) - 1).clamp(min=0)
    found = model(padded, attention_mask=mask, position_ids=places).logits[:, 4:]
    torch.testing.assert_close(found, whole, atol=5e-5, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("name", [*RELATIVE, "opt"])
def test_left_padding_without_positions_is_as_on_the_host_alone(name: str) -> None:
    """Where a host knows distances alone, or counts real tokens: padding is not between sink tokens and text."""
    model, ids = equipped(name), inputs(name)["input_ids"]
    padded = torch.cat([ids[:, :4], ids], 1)
    mask = torch.ones_like(padded)
    mask[:, :4] = 0
    past = DynamicCache()
    found = model(padded[:, :-3], attention_mask=mask[:, :-3], past_key_values=past).logits[:, 4:]
    found = torch.cat([found, model(padded[:, -3:], attention_mask=mask, past_key_values=past).logits], 1)
    torch.testing.assert_close(found, model(ids).logits, atol=5e-5, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("name", ["llama", "gpt2", "opt", "phi3"])
def test_generation_with_a_cache_is_generation_without(name: str) -> None:
    model = equipped(name, "sink_logit")
    ids = inputs(name)["input_ids"][:2, :12]
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    told = {"attention_mask": mask, "max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    told |= {"output_logits": True, "return_dict_in_generate": True}
    cached, without = (model.generate(ids, use_cache=use, **told) for use in (True, False))
    assert torch.equal(cached.sequences, without.sequences)
    torch.testing.assert_close(torch.stack(cached.logits), torch.stack(without.logits), atol=5e-5, rtol=1e-4)
    alone = model.generate(ids[:1, 4:], **{**told, "attention_mask": mask[:1, 4:]})
    assert torch.equal(alone.sequences, cached.sequences[:1, 4:])


def test_a_measurement_counts_them_as_the_first_positions() -> None:
    """As maps say, and as the plain host measured on the longer sequence does."""
    model, ids = equipped("llama"), inputs("llama")["input_ids"]
    found = ss.measure(model, ids, observers=[ss.AttentionReceived()]).data["attention_received"]
    assert found.sizes["position"] == ids.shape[1] + COUNT
    with torch.no_grad():
        maps = model(ids, output_attentions=True).attentions
    for index, weights in enumerate(maps):
        counts = torch.arange(weights.shape[-1], 0, -1)
        received = weights.sum(-2) / counts
        torch.testing.assert_close(torch.from_numpy(found.isel(layer=index).values), received, atol=1e-5, rtol=0)
    inner = ss.measure(model.model, ids, observers=[ss.AttentionReceived()]).data["attention_received"]
    assert float(abs(inner - found).max()) < 1e-6


@torch.no_grad()
def test_registers_stand_behind_cls_and_are_dropped() -> None:
    model, plain, given = equipped("vit"), host("vit"), inputs("vit")
    hidden = plain.embeddings(given["pixel_values"])
    hidden = torch.cat([hidden[:, :1], tokens_of(model).expand(len(hidden), -1, -1), hidden[:, 1:]], 1)
    plain.embeddings.register_forward_hook(lambda *_: hidden)
    longer = plain(**given).last_hidden_state
    wanted = torch.cat([longer[:, :1], longer[:, 1 + COUNT :]], 1)
    torch.testing.assert_close(model(**given).last_hidden_state, wanted, atol=1e-5, rtol=1e-4)
    seen = ss.measure(model, given, observers=[ss.AttentionReceived()])
    assert seen.data.sizes["position"] == longer.shape[1]


@pytest.mark.parametrize("name", ["llama", "opt", "vit"])
def test_they_are_saved_copied_and_taken_off(name: str, tmp_path: Path) -> None:
    model, given = equipped(name, "gated_head"), inputs(name)
    found, tokens = output(model, given), tokens_of(model)
    copied = copy.deepcopy(model)
    assert torch.equal(output(copied, given), found)
    with torch.no_grad():
        tokens_of(copied).add_(1.0)
    assert not torch.equal(output(copied, given), found)
    assert torch.equal(output(model, given), found)
    model.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert (written["tokens"], written["version"]) == (COUNT, 4)
    loaded = ss.load(tmp_path)
    assert torch.equal(tokens_of(loaded), tokens)
    assert torch.equal(output(loaded, given), found)
    kinds = [vars(module).keys() for module in host(name).modules()]
    ss.detach(model)
    assert torch.equal(output(model, given), output(host(name), given))
    assert [vars(module).keys() for module in model.modules()] == kinds
    assert list(model.state_dict()) == list(host(name).state_dict())


@pytest.mark.parametrize("name", ["llama", "gpt2", "vit"])
def test_they_learn_with_the_operation(name: str) -> None:
    model = equipped(name)
    learned = ss.trainable_only(model, "operation")
    assert len(learned) == 1
    model(**inputs(name))[0].square().mean().backward()
    assert all(bool(parameter.grad.any()) for parameter in learned.values())


@pytest.mark.parametrize(
    ("name", "count", "words"),
    [
        ("mistral", 2, "family 'mistral': no sink tokens, its sliding window would hide them"),
        ("gpt_oss", 2, "sliding window would hide them"),
        ("gemma3_text", 2, "sliding window would hide them"),
        ("bert", 2, "family 'bert': no sink tokens, its first token is what its heads read"),
        ("llama", -1, "sink_tokens = -1: a whole number"),
        ("llama", 1.5, "sink_tokens = 1.5: a whole number"),
        ("llama", True, "sink_tokens = True: a whole number"),
    ],
)
def test_models_that_cannot_have_them(name: str, count: int, words: str) -> None:
    model, given = host(name), inputs(name)
    before, state = output(model, given), list(model.state_dict())
    with pytest.raises((InputError, UnsupportedModelError), match=words):
        ss.attach(model, "softmax", sink_tokens=count)
    assert list(model.state_dict()) == state
    assert torch.equal(output(model, given), before)


def test_stable_mask_counts_tokens_of_the_text_alone() -> None:
    with pytest.raises(UnsupportedModelError, match="counts the tokens of the text"):
        ss.attach(host("llama"), "stable_mask", sink_tokens=2)


@torch.no_grad()
def test_what_would_lose_them_or_a_token_is_refused() -> None:
    model, ids = equipped("llama"), inputs("llama")["input_ids"][:2, :12]
    told = {"do_sample": False, "pad_token_id": 0, "max_new_tokens": 2}
    with pytest.raises(InputError, match="a static cache has no room for sink tokens"):
        model.generate(ids, cache_implementation="static", **told)
    past = model(ids[:, :8], use_cache=True).past_key_values
    with pytest.raises(InputError, match="whose length counts the sink tokens: start anew"):
        model.generate(ids, past_key_values=past, **told)
    with pytest.raises(InputError, match="and this one is written out already"):
        model(ids, attention_mask=torch.ones(2, 1, 12, 12, dtype=torch.bool))
    restarts = torch.arange(12).remainder(6)[None].expand(2, -1)
    with pytest.raises(InputError, match="sink tokens need one document per row"):
        model(ids, position_ids=restarts, use_cache=False)
    with pytest.raises(InputError, match="exactly one of input_ids and inputs_embeds"):
        model.model(ids, inputs_embeds=model.get_input_embeddings()(ids))
