"""Following the passes of a model: what each was given, and which samples it belongs to."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks.passes import Forward, Pass, Passes, Samples, arguments, axes
from tests.families.sweep.build import build

SIZES: dict[str, Any] = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16, "num_hidden_layers": 2}


@pytest.fixture
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=31, max_position_embeddings=32, **SIZES)).eval()


def ids(rows: int, length: int) -> Tensor:
    return torch.randint(31, (rows, length), generator=torch.Generator().manual_seed(1))


def test_positions_count_real_tokens_from_the_first_one_also_behind_a_cache(model: LlamaForCausalLM) -> None:
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    forward = Forward.of(model, (), {"input_ids": ids(2, 5), "attention_mask": mask})
    hidden = torch.zeros(2, 5, 16)
    assert forward.at("tokens", (0,), hidden).nonzero().tolist() == [[0, 2], [1, 0]]
    assert forward.at("tokens", None, hidden).sum(-1).tolist() == [3, 5]
    behind = Forward.of(model, (), {"input_ids": ids(2, 5), "attention_mask": mask.flip(1)})
    assert behind.at("tokens", (2,), hidden).nonzero().tolist() == [[0, 2], [1, 2]], "padding behind a row is no token"

    cache = DynamicCache(config=model.config)
    model(ids(2, 5), attention_mask=mask, past_key_values=cache)
    grown = torch.nn.functional.pad(mask, (0, 1), value=1)
    later = Forward.of(model, (ids(2, 1),), {"attention_mask": grown, "past_key_values": cache})
    assert (later.seen, later.start("tokens"), later.start("memory")) == (5, 5, 0)
    assert later.at("tokens", (3,), hidden[:, :1]).tolist() == [[True], [False]], "the padded row's fourth token"
    assert later.at("tokens", (5,), hidden[:, :1]).tolist() == [[False], [True]]


def test_an_encoder_decoder_has_a_mask_for_each_side() -> None:
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 31}
    model = T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0))
    source, target = torch.tensor([[1, 1, 0]]), torch.tensor([[1, 0]])
    given = {"input_ids": ids(1, 3), "attention_mask": source, "decoder_input_ids": ids(1, 2)}
    forward = Forward.of(model, (), {**given, "decoder_attention_mask": target})
    assert forward.real["memory"].tolist() == [[True, True, False]]
    assert forward.real["tokens"].tolist() == [[True, False]]
    assert [axes(stack, True) for stack in ("encoder", "cross", "decoder", "vision")] == [
        ("memory", "memory"),
        ("tokens", "memory"),
        ("tokens", "tokens"),
        ("vision", "vision"),
    ]
    assert axes("encoder", False) == ("tokens", "tokens")


def test_ids_are_those_of_samples_with_one_token_at_a_position() -> None:
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 31}
    model = T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0))
    plain, codebooks, channels = ids(2, 4), ids(6, 4), torch.zeros(2, 4, 3, dtype=torch.long)
    found = [
        Forward.of(model, (), {"input_ids": ids(2, 3), "decoder_input_ids": written}).ids
        for written in (plain, codebooks, channels)
    ]
    assert found[0] is plain
    assert found[1:] == [None, None], "a row for each codebook (MusicGen) and channels (Dia) are no text"


def test_padding_of_text_that_is_cut_into_patches_is_refused() -> None:
    model, given = build("blt"), ids(2, 5)
    with pytest.raises(UnsupportedModelError, match="'blt' cuts its text into patches, padding as well"):
        Forward.of(model, (), {"input_ids": given, "attention_mask": torch.tensor([[1, 1, 1, 0, 0], [1] * 5])})
    whole = Forward.of(model, (), {"input_ids": given, "attention_mask": torch.ones(2, 5, dtype=torch.long)})
    assert (whole.lengths, whole.real) == ({"tokens": 5}, {})


def test_passes_open_and_close_also_after_an_error(model: LlamaForCausalLM) -> None:
    opened: list[Pass] = []
    closed: list[Any] = []
    passes = Passes(model, lambda begun, args, kwargs: opened.append(begun), lambda done, output: closed.append(done))
    with ExitStack() as stack:
        passes.attach(stack)
        model(ids(2, 4))
        with pytest.raises(IndexError):
            model(torch.tensor([[99]]))
        assert passes.under_way is None, "a pass that failed is over"
        assert (len(opened), len(closed)) == (2, 1), "and it does not count"
        with pytest.raises(InputError, match="call that model itself"):
            _ = passes.now
    model(ids(1, 2))
    assert len(opened) == 2, "nothing is followed any more"


def test_what_is_required_must_be_noted_in_every_pass(model: LlamaForCausalLM) -> None:
    passes = Passes(model)
    layer = model.model.layers[0]
    with ExitStack() as stack:
        passes.attach(stack)
        inner = stack.enter_context(ExitStack())
        passes.require(lambda done: "b" in done.noted, "b was not there", inner)
        note = layer.register_forward_hook(lambda *_: passes.now.note("b"))
        model(ids(1, 3))
        note.remove()
        with pytest.raises(UnsupportedModelError, match="b was not there"):
            model(ids(1, 3))
        inner.close()
        model(ids(1, 3))  # what was required is required no more


def test_samples_continue_with_their_own_cache_alone() -> None:
    cache, other = DynamicCache(), DynamicCache()
    samples = Samples(size=2, first=0, length=4, cache=cache)
    assert samples.continues(Forward(batch=2, seen=4, cache=cache, ids=None))
    assert not samples.continues(Forward(batch=2, seen=4, cache=other, ids=None))
    assert not samples.continues(Forward(batch=2, seen=0, cache=cache, ids=None)), "a cache that was reset starts anew"
    for batch, seen in ((2, 3), (3, 4)):
        with pytest.raises(InputError, match=f"holds {batch} rows of {seen} tokens, but 2 rows of 4"):
            samples.continues(Forward(batch=batch, seen=seen, cache=cache, ids=None))


def test_uses_are_counted_by_owner() -> None:
    under_way = Pass(Forward(batch=1, seen=0, cache=None, ids=None))
    assert [under_way.use("a"), under_way.use("a"), under_way.use("b")] == [0, 1, 0]


def test_a_pass_counts_also_while_somebody_handles_an_error(model: LlamaForCausalLM) -> None:
    closed: list[Any] = []
    with ExitStack() as stack:
        Passes(model, closed=lambda done, output: closed.append(done)).attach(stack)
        try:
            raise ValueError("earlier")
        except ValueError:
            model(ids(1, 2))
    assert len(closed) == 1


def test_arguments_have_their_names_however_they_are_given(model: LlamaForCausalLM) -> None:
    tokens, mask = ids(1, 2), torch.ones(1, 2)
    wanted = {"input_ids": tokens, "attention_mask": mask, "more": 1}
    assert arguments(model, (tokens, mask), {"more": 1}) == wanted
    assert arguments(model, (tokens,), {"attention_mask": mask, "more": 1}) == wanted
    assert arguments(model, (), wanted) == wanted

    class Wrapper(torch.nn.Module):
        def forward(self, *args: Any, **kwargs: Any) -> None: ...

    assert arguments(Wrapper(), (tokens,), {"attention_mask": mask}) == {"attention_mask": mask}
