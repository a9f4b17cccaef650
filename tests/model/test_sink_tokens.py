"""Learned tokens in front of every sequence: seen by all, seeing no text, dropped at the end, measured as positions."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import sinkscope.attention as zoo
from sinkscope.errors import InputError
from sinkscope.model import LabConfig, LabForCausalLM, load
from sinkscope.model.visibility import BesideSinks, bidirectional, bind
from tests.model.position_models import SCHEMES, SIZES, build, in_chunks

CLOSE: dict[str, float] = {"atol": 3e-5, "rtol": 1e-4}
CAUSAL, FULL = zoo.Causal(), zoo.Full()
MASKS = {
    "causal": CAUSAL,
    "window": CAUSAL & zoo.Window(3),
    "prefix": CAUSAL | zoo.VisiblePrefix(2),
    "document": CAUSAL & zoo.Document(),
}
PACKED = zoo.AttentionSpec(mask=MASKS["document"])


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(1, 53, (2, 13))


def visible(mask: Any, length: int, sinks: int, *, is_causal: bool = True, **options: Any) -> torch.Tensor:
    """(query, key) of the first row."""
    bound = bind(mask, sinks + length, sinks + length, sinks=sinks, is_causal=is_causal, **options)
    return bound.dense()[0, 0]


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("padded", [False, True])
def test_every_query_sees_them_and_the_text_is_as_without(kind, padded):
    """Beside the sink tokens' columns, the mask is the one without them; they see those before them alone."""
    real = torch.tensor([[0, 0, 1, 1, 1, 1, 1]]) if padded else None
    given = {"attention_mask": real, "documents": torch.tensor([[0, 0, 0, 0, 0, 1, 1]])}
    found, without = visible(MASKS[kind], 7, 3, **given), visible(MASKS[kind], 7, 0, **given)
    assert torch.equal(found[3:, 3:], without)
    assert torch.equal(found[:3], torch.eye(3, 10).cumsum(0).bool())
    awake = torch.ones(7, dtype=torch.bool) if real is None else real[0].bool()
    assert torch.equal(found[3:, :3], awake[:, None].expand(-1, 3))


def test_in_a_bidirectional_model_they_see_the_text_unless_documents_would_meet():
    documents = torch.tensor([[0, 0, 1, 1]])
    assert visible(FULL, 4, 2, is_causal=False).all()
    window = visible(zoo.Window(2), 4, 2, is_causal=False)
    assert window[:2].all()
    assert window[:, :2].all()
    packed = visible(zoo.Document(), 4, 2, is_causal=False, documents=documents)
    assert not packed[:2, 2:].any()
    assert packed[:, :2].all()
    assert torch.equal(packed[2:, 2:], documents[0][:, None] == documents[0])


def test_a_further_mask_counts_from_the_first_sink_token():
    """As a measurement does: forbidding position 0 hides the first sink token from all but itself."""
    for kind in ("causal", "window"):
        bound = bind(MASKS[kind], 8, 8, sinks=2)
        assert isinstance(bound, BesideSinks) == (kind == "window")
        narrowed = bound.narrowed(zoo.Without((0,))).narrowed(zoo.Without((3,))).dense()[0, 0]
        assert narrowed[:, 0].tolist() == [True] + [False] * 7
        assert narrowed[:, 3].tolist() == [False] * 3 + [True] + [False] * 4
        kept = [1, 2, 4, 5, 6, 7]
        assert torch.equal(narrowed[:, kept], bound.dense()[0, 0][:, kept])


def as_text(model: LabForCausalLM, ids: torch.Tensor) -> torch.Tensor:
    """Logits of a model without sink tokens that reads two tokens of its vocabulary with the same embeddings."""
    config = LabConfig(**{**model.config.to_diff_dict(), "sink_tokens": 0})
    plain = LabForCausalLM(config).eval()
    plain.load_state_dict({name: value for name, value in model.state_dict().items() if "sinks" not in name})
    with torch.no_grad():
        plain.model.embed_tokens.weight[:2] = model.model.sinks.sink_tokens
    front = torch.arange(2).expand(len(ids), -1)
    return plain(torch.cat([front, ids], 1)).logits[:, 2:]


@torch.no_grad()
@pytest.mark.parametrize("position", ["none", "relative_t5", "relative_paper", "rotary", "alibi"])
def test_they_are_two_tokens_in_front(position, ids):
    """Under a relative scheme, nothing but two more tokens; absolute positions leave the text where it was."""
    ids = ids.clamp(min=2)
    model = build(sink_tokens=2, position=position)
    assert_close(model(ids).logits, as_text(model, ids), **CLOSE)


@torch.no_grad()
def test_absolute_positions_leave_the_text_where_it_was(ids):
    """They use every row of the learned table for text, and none for themselves."""
    model = build(sink_tokens=2, position="learned", max_position_embeddings=13)
    before = model(ids).logits
    model.model.position.table.weight[0] += 1
    assert (model(ids).logits - before).abs().max() > 1e-3
    embedded = model.model.embed_tokens(ids) + model.model.position.table.weight
    unplaced = copy.deepcopy(model)
    unplaced.model.position.table.weight.zero_()
    assert_close(unplaced(inputs_embeds=embedded).logits, model(ids).logits)


@torch.no_grad()
@pytest.mark.parametrize("name", SCHEMES)
def test_cache_padding_and_packing_equal_the_full_forward(name, ids):
    scheme = SCHEMES[name] | {"sink_tokens": 2}
    model = build(**scheme)
    full = model(ids).logits
    assert full.shape == (2, 13, 53)
    assert_close(in_chunks(model, ids, [5, 1, 7]), full, **CLOSE)
    padded = torch.cat([torch.zeros(2, 4, dtype=torch.long), ids], 1)
    assert_close(model(padded, attention_mask=(padded > 0).long()).logits[:, 4:], full, **CLOSE)
    packed = build(attention=PACKED, restart_positions=True, **scheme)
    documents = torch.tensor([[4] * 6 + [2] * 7]).expand(2, -1)
    alone = torch.cat([model(ids[:, :6]).logits, model(ids[:, 6:]).logits], 1)
    assert_close(packed(ids, document_ids=documents).logits, alone, **CLOSE)
    assert_close(in_chunks(packed, ids, [4, 4, 5], document_ids=documents), alone, **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("kind", MASKS)
def test_decoding_under_every_mask_and_attention(kind, ids):
    documents = torch.tensor([[0] * 6 + [1] * 7]).expand(2, -1)
    for attention in ("softmax", "sigmoid", "k_bias"):
        model = build(attention=replace(zoo.CATALOG[attention], mask=MASKS[kind]), sink_tokens=3)
        full = model(ids, document_ids=documents).logits
        assert_close(in_chunks(model, ids, [5, 1, 1, 6], document_ids=documents), full, **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("attention", ["stable_mask", {"name": "first_key_logit", "initial": 3.0}], ids=str)
def test_places_in_a_row_begin_after_them(attention, ids):
    """So a row is its one document; and its last token, at the end of the context, has nothing after it."""
    spec = zoo.resolve(attention)
    models = [build(attention=replace(spec, mask=mask), sink_tokens=3) for mask in (CAUSAL, MASKS["document"])]
    models[1].load_state_dict(models[0].state_dict())
    padded = torch.cat([ids * 0, ids], 1)
    for model in models:
        full = model(ids).logits
        assert_close(full, models[0](ids).logits, **CLOSE)
        assert_close(in_chunks(model, ids, [5, 1, 7]), full, **CLOSE)
        assert_close(model(padded, attention_mask=(padded > 0).long()).logits[:, 13:], full, **CLOSE)
    slot = zoo.SuffixSlot(gamma=0.5, context=8).build(models[0].model.layers[0].self_attn.operation.sizes)
    logits = slot(zoo.Context(bind(CAUSAL, 11, 11, sinks=3), 1.0)).logit[0, 0]
    assert_close(logits[3:-1], torch.stack([(-0.5 * torch.arange(t + 1.0, 8)).logsumexp(0) for t in range(7)]))
    assert logits[-1] == -torch.inf


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("position", ["rotary", "alibi"])
def test_generate_equals_greedy_decoding_by_hand(cache, position, ids):
    model, prompt = build(sink_tokens=2, position=position), ids[:, :6]
    expected = prompt
    with torch.no_grad():
        for _ in range(5):
            expected = torch.cat([expected, model(expected, use_cache=False).logits[:, -1:].argmax(-1)], 1)
    padded = torch.cat([torch.zeros(2, 3, dtype=torch.long), prompt], 1)
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "disable_compile": True}
    options |= {"cache_implementation": None if cache == "dynamic" else cache}
    real = torch.ones_like(prompt)
    assert torch.equal(model.generate(prompt, attention_mask=real, **options), expected)
    assert torch.equal(model.generate(prompt, attention_mask=real, prefill_chunk_size=4, **options), expected)
    assert torch.equal(model.generate(padded, attention_mask=(padded > 0).long(), **options)[:, 3:], expected)


def test_generation_goes_on_with_a_cache_of_the_caller(ids):
    model, prompt = build(sink_tokens=2), ids[:, :6]
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    cache = model(prompt[:, :4]).past_key_values
    assert cache.get_seq_length() == 6
    expected = model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
    found = model.generate(prompt, attention_mask=torch.ones_like(prompt), past_key_values=cache, **options)
    assert torch.equal(found, expected)


def test_gradients_reach_them_and_training_sees_the_same_labels(ids):
    model = build(sink_tokens=2).train()
    loss = model(ids, labels=ids).loss
    loss.backward()
    assert (model.model.sinks.sink_tokens.grad.norm(dim=-1) > 0).all()
    logits = model(ids).logits
    assert_close(loss, torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()))


def test_saved_and_loaded(ids, tmp_path):
    model = build(sink_tokens=2)
    model.save_pretrained(tmp_path)
    assert torch.equal(load(tmp_path)(ids).logits, model(ids).logits)


def test_they_start_small():
    torch.manual_seed(0)
    tokens = LabForCausalLM(LabConfig(**SIZES, sink_tokens=50)).model.sinks.sink_tokens
    assert tokens.shape == (50, 48)
    assert tokens.std().item() == pytest.approx(0.02, rel=0.05)


def test_bad_numbers_of_them():
    for number in (-1, 1.5):
        with pytest.raises((InputError, TypeError), match="sink_tokens"):
            LabConfig(**SIZES, sink_tokens=number)


class TestBidirectional:
    """`is_causal=False`: the triangle goes, everything else stays."""

    def test_the_triangle_goes(self):
        assert bidirectional(CAUSAL) == FULL
        assert bidirectional(MASKS["window"]) == zoo.Window(3)
        assert bidirectional(MASKS["prefix"]) == FULL
        assert bidirectional((CAUSAL & zoo.Window(3)) & zoo.Document()) == zoo.Window(3) & zoo.Document()
        assert bidirectional(zoo.Window(3) | zoo.VisiblePrefix(2)) == zoo.Window(3) | zoo.VisiblePrefix(2)

    @torch.no_grad()
    @pytest.mark.parametrize("name", SCHEMES)
    @pytest.mark.parametrize("sinks", [0, 2])
    def test_queries_look_ahead_and_padding_changes_nothing(self, name, sinks, ids):
        model = build(is_causal=False, sink_tokens=sinks, **SCHEMES[name])
        logits = model(ids)
        assert logits.past_key_values is None
        other = ids.clone()
        other[:, -1] = (ids[:, -1] + 1) % 53
        assert ((model(other).logits - logits.logits)[:, 0].abs().amax(-1) > 1e-4).all()
        for padded in (torch.cat([ids * 0, ids], 1), torch.cat([ids, ids * 0], 1)):
            found = model(padded, attention_mask=(padded > 0).long()).logits[padded > 0]
            assert_close(found.view(2, 13, -1), logits.logits, **CLOSE)

    @torch.no_grad()
    def test_packed_documents_are_documents_alone(self, ids):
        for name in ("relative_t5", "learned", "alibi"):
            options = {"is_causal": False, "restart_positions": True, "sink_tokens": 1, "position": name}
            documents = torch.tensor([[0] * 6 + [1] * 7]).expand(2, -1)
            packed = build(attention=PACKED, **options)(ids, document_ids=documents).logits
            alone = build(attention=PACKED, **options)
            pieces = [alone(part, document_ids=torch.zeros_like(part)).logits for part in (ids[:, :6], ids[:, 6:])]
            assert_close(packed, torch.cat(pieces, 1), **CLOSE)

    def test_labels_are_those_of_their_own_place(self, ids):
        model = build(is_causal=False)
        labels = ids.masked_fill(torch.arange(13) % 3 > 0, -100)
        out = model(ids, labels=labels)
        assert_close(out.loss, torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), labels.flatten()))

    def test_it_refuses_caches_and_generation(self, ids):
        model = build(is_causal=False)
        cache = build()(ids[:, :3]).past_key_values
        with pytest.raises(InputError, match="cache"):
            model(ids[:, 3:], past_key_values=cache)
        with pytest.raises(InputError, match="does not generate"):
            model.generate(ids, max_new_tokens=2)
        with pytest.raises(InputError, match="StableMask"):
            build(is_causal=False, attention="stable_mask")

    def test_saved_and_loaded(self, ids, tmp_path):
        model = build(is_causal=False)
        model.save_pretrained(tmp_path)
        loaded = load(tmp_path)
        assert loaded.config.is_causal is False
        assert loaded.config.attention_name == "softmax"
        assert torch.equal(loaded(ids).logits, model(ids).logits)
