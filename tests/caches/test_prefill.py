"""Reading a prompt in pieces gives what reading it token by token gives, whatever the pieces."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Cache, DynamicCache

from sinkscope.caches import StreamingCache, streaming
from sinkscope.caches.strict import at_once
from sinkscope.errors import InputError, UnsupportedModelError
from tests.caches import contract
from tests.caches.contract import TOLERANCE, error, ids
from tests.caches.families import STREAMS, slow_but
from tests.families.registry import FAMILIES

TOKENS, SHORT = 45, 17  # a stream keeps 8
one_by_one: dict[tuple[int, int], Tensor] = {}
PADS = (0, 9, 25)
# Half, interleaved, latent, a window beside, learned sinks and softcaps in eager attention.
FEW = ("llama", "cohere", "deepseek_v3", "gemma3", "gpt_oss", "gemma2", "nanochat")
TOKEN_BY_TOKEN = ("bloom", "mpt", "falcon", "gptj", "codegen", "gpt_neox_japanese", "doge")  # attention of their own
STATES = (
    *("bamba", "falcon_h1", "zamba", "zamba2", "granitemoehybrid", "lfm2"),
    *("qwen3_next", "qwen3_5", "qwen3_5_moe", "olmo_hybrid"),
)
FORGET = ("jamba", "nemotron_h")  # states begin anew in each pass of several tokens


@pytest.fixture(scope="module")
def llama() -> Any:
    return FAMILIES["llama"].build("sdpa")


def read(model: Any, tokens: Tensor, chunk: int, mask: Tensor | None = None, **options: Any) -> Tensor:
    """Logits of everything."""
    cache = StreamingCache(model, **{"sinks": 2, "window": 6} | options)
    return torch.cat([output[0] for output in cache.read(model, tokens, chunk, mask)], 1)


@pytest.mark.slow
@pytest.mark.parametrize(("sinks", "window"), [(2, 6), (0, 5), (0, 1), (3, 1), (1, 2)])
@pytest.mark.parametrize("chunk", [2, 7, 9, TOKENS])
def test_every_chunk_gives_the_same(llama: Any, chunk: int, sinks: int, window: int) -> None:
    if (sinks, window) not in one_by_one:
        one_by_one[sinks, window] = read(llama, ids(1, TOKENS), 1, sinks=sinks, window=window)
    found = read(llama, ids(1, TOKENS), chunk, sinks=sinks, window=window)
    assert error(found, one_by_one[sinks, window]) <= TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("distance", ["cache", "ceiling", "original"])
@pytest.mark.parametrize("chunk", [7, TOKENS])
def test_padded_rows_and_every_distance(llama: Any, distance: Any, chunk: int) -> None:
    tokens = ids(3, TOKENS)
    mask = torch.stack([(torch.arange(TOKENS) >= pad).long() for pad in PADS])
    wanted, found = (read(llama, tokens, size, mask, distance=distance) for size in (1, chunk))
    for row, pad in enumerate(PADS):
        assert error(found[row, pad:], wanted[row, pad:]) <= TOLERANCE


def check_strict(name: str, host: Any, chunks: tuple[int, ...] = (5, SHORT)) -> None:
    model, tokens = contract.built(name, host), ids(1, SHORT)
    wanted = read(model, tokens, 1)
    for chunk in chunks:
        assert error(read(model, tokens, chunk), wanted) <= TOLERANCE, (name, chunk)


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(("deepseek_v3", "gemma3", "gpt_oss"), FEW))
def test_families_are_read_in_pieces(name: str) -> None:
    host = STREAMS[name].hosts[-1]
    assert at_once(contract.built(name, host), StreamingCache(contract.built(name, host), 2, 6))
    check_strict(name, host)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in STREAMS if name not in FEW])
def test_every_family_is_read_in_pieces_or_token_by_token(name: str) -> None:
    family = STREAMS[name]
    if family.obstacle(family.hosts[-1]):
        pytest.skip(str(family.obstacle(family.hosts[-1])))
    model = contract.built(name, family.hosts[-1])
    together = name not in (*TOKEN_BY_TOKEN, *FORGET)
    assert at_once(model, StreamingCache(model, 2, 6)) == together
    check_strict(name, family.hosts[-1], (5, SHORT) if together else (5,))


@pytest.mark.slow
@pytest.mark.parametrize("name", STATES[1:])
def test_padding_does_not_enter_states(name: str) -> None:
    """A row with padding is what it is alone, read in pieces; token by token transformers would take padding in."""
    length, pads = 23, (0, 5, 13)
    model, tokens = contract.built(name, STREAMS[name].hosts[-1]), ids(3, length)
    mask = torch.stack([(torch.arange(length) >= pad).long() for pad in pads])
    alone = [read(model, tokens[row : row + 1, pad:], 1)[0] for row, pad in enumerate(pads)]
    for chunk in (7, 11, length):  # after the second, a single token is left
        found = read(model, tokens, chunk, mask)
        for row, pad in enumerate(pads):
            assert error(found[row, pad:], alone[row]) <= TOLERANCE
    with pytest.raises(UnsupportedModelError, match="takes padding into its states"):
        read(model, tokens, 1, mask)


def test_padding_is_refused_where_states_forget() -> None:
    model, tokens = contract.built("jamba", STREAMS["jamba"].hosts[-1]), ids(2, 12)
    mask = torch.stack([(torch.arange(12) >= pad).long() for pad in (0, 5)])
    with pytest.raises(UnsupportedModelError, match="takes padding into its states"):
        read(model, tokens, 5, mask)


@pytest.mark.parametrize("layer", [0, -1])
def test_a_layer_whose_attention_takes_no_mask_is_refused(llama: Any, layer: int) -> None:
    """Where it is followed by others, and where it is the last."""
    model, tokens = deepcopy(llama), ids(1, 20)
    attention = model.model.layers[layer].self_attn

    def own(hidden_states: Tensor, **inputs: Any) -> tuple[Tensor, None]:
        """Keeps keys and values as the layer does, and computes attention without transformers' interface."""
        cache = next(value for value in inputs.values() if isinstance(value, Cache))
        shape = (*hidden_states.shape[:2], -1, attention.head_dim)
        keys, values = (
            each(hidden_states).view(shape).transpose(1, 2) for each in (attention.k_proj, attention.v_proj)
        )
        cache.update(keys, values, attention.layer_idx)
        return torch.zeros_like(hidden_states), None

    attention.forward = own
    with pytest.raises(UnsupportedModelError, match="read one token at a time"):
        read(model, tokens, 20)
    assert read(model, tokens, 1).isfinite().all()


WRITE: dict[str, Any] = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
WRITE |= {"output_logits": True, "return_dict_in_generate": True}


def written(model: Any, tokens: Tensor, cache: StreamingCache, **options: Any) -> Tensor:
    return torch.stack(model.generate(tokens, past_key_values=cache, **WRITE, **options).logits, 1)


@pytest.mark.slow
def test_generate_reads_its_prompt_strictly(llama: Any) -> None:
    """In one call, with `prefill` before it, or token by token; rows with padding, and a second turn."""
    tokens = ids(2, TOKENS)
    mask = torch.ones_like(tokens).index_put_((torch.tensor(1), torch.arange(11)), torch.tensor(0))
    wanted = written(llama, tokens, StreamingCache(llama, 2, 6), attention_mask=mask, prefill_chunk_size=1)
    for chunk in (4, 100):
        cache = StreamingCache(llama, 2, 6)
        cache.prefill(llama, tokens, chunk, mask)
        assert cache.get_seq_length() == TOKENS - 1
        assert error(written(llama, tokens, cache, attention_mask=mask), wanted) <= TOLERANCE
    assert error(written(llama, tokens, StreamingCache(llama, 2, 6), attention_mask=mask), wanted) <= TOLERANCE
    assert error(written(llama, tokens[1:, 11:], StreamingCache(llama, 2, 6)), wanted[1:]) <= TOLERANCE
    cache = StreamingCache(llama, 2, 6)
    written(llama, tokens[:1, :20], cache)
    more = torch.cat([tokens[:1, :20], ids(1, 30)], 1)
    again, turn = StreamingCache(llama, 2, 6), StreamingCache(llama, 2, 6)
    for each in (again, turn):
        each.prefill(llama, tokens[:1, :20])
    again.prefill(llama, more[:, 19:], 1)
    assert error(written(llama, more, turn), written(llama, more, again)) <= TOLERANCE


def test_beams_read_their_prompt_strictly(llama: Any) -> None:
    tokens, cache = ids(1, TOKENS), StreamingCache(llama, 2, 6)
    cache.prefill(llama, tokens.expand(3, -1))
    options: dict[str, Any] = {"num_beams": 3, "max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    found = llama.generate(tokens, past_key_values=StreamingCache(llama, 2, 6), **options)
    assert torch.equal(found, llama.generate(tokens, past_key_values=cache, **options))


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is logged, as if nothing had been before."""
    found: list[str] = []
    monkeypatch.setattr(streaming, "_warned", set())
    monkeypatch.setattr(streaming.log, "warning", lambda line, *values: found.append(line % values))
    return found


def test_a_pass_that_shows_more_than_a_stream_is_told_once(llama: Any, lines: list[str]) -> None:
    tokens = ids(1, TOKENS)
    with torch.no_grad():
        llama(tokens[:, :8], past_key_values=StreamingCache(llama, 2, 6))  # no more than it keeps
        assert not lines
        for _ in range(2):
            dense = llama(tokens, past_key_values=StreamingCache(llama, 2, 6)).logits
    assert [("cache.read" in line, "cache.prefill" in line) for line in lines] == [(True, True)]
    assert error(dense, read(llama, tokens, 7)) > 1e-3
    own = contract.built("falcon", "eager")
    own.generate(tokens, past_key_values=StreamingCache(own, 2, 6), max_new_tokens=2, do_sample=False, pad_token_id=0)
    assert len(lines) == 2


def test_without_a_window_keys_are_those_that_the_model_was_trained_for(llama: Any, lines: list[str]) -> None:
    trained = llama.config.max_position_embeddings
    assert StreamingCache(llama).length == trained
    assert StreamingCache(llama, 1).window == trained - 1
    assert not lines
    assert StreamingCache(llama, 4, trained).length == trained + 4
    assert f"trained for {trained} tokens" in lines[0]
    assert StreamingCache(contract.built("bloom", "eager")).length == 1024
    with pytest.raises(InputError, match="leaves no window"):
        StreamingCache(llama, trained)


def test_buffers_grow_with_the_text(llama: Any) -> None:
    cache = StreamingCache(llama, 2, 48)
    with torch.no_grad():
        for start, stop, rows in ((0, 5, 5), (5, 6, 22), (6, 60, 53), (60, 61, 53)):
            llama(ids(1, 70)[:, start:stop], past_key_values=cache)
            assert (cache.followed[0]._buffers or [])[0].shape[2] == rows


def test_padded_prompts_are_read_and_written_on(llama: Any) -> None:
    tokens = ids(2, 30)
    mask = torch.ones_like(tokens).index_put_((torch.tensor(1), torch.arange(11)), torch.tensor(0))
    options: dict[str, Any] = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    both, alone = StreamingCache(llama, 2, 6), StreamingCache(llama, 2, 6)
    both.prefill(llama, tokens, 8, mask)
    alone.prefill(llama, tokens[1:, 11:], 5)
    written = llama.generate(tokens, attention_mask=mask, past_key_values=both, **options)
    assert torch.equal(written[1, 11:], llama.generate(tokens[1:, 11:], past_key_values=alone, **options)[0])


def test_a_second_text_follows_the_first(llama: Any) -> None:
    tokens = ids(1, TOKENS)
    cache = StreamingCache(llama, 2, 6)
    first = [output[0] for output in cache.read(llama, tokens[:, :20], 6)]
    copy = deepcopy(cache)
    wanted = read(llama, tokens, 1)
    for each in (cache, copy):
        second = [output[0] for output in each.read(llama, tokens[:, 20:], 9)]
        assert error(torch.cat(first + second, 1), wanted) <= TOLERANCE


@pytest.mark.slow
def test_the_origin_moves_while_a_text_is_read(llama: Any) -> None:
    tokens = ids(1, 80)
    wanted = read(llama, tokens, 1)
    cache = StreamingCache(llama, 2, 6)
    cache._origin.limit = 24
    found = torch.cat([output[0] for output in cache.read(llama, tokens, 7)], 1)
    assert cache._origin.base > 40
    assert error(found, wanted) <= TOLERANCE


def test_places_name_each_copy(llama: Any) -> None:
    cache = StreamingCache(llama, 2, 4)
    for _ in cache.read(llama, ids(1, 8), 4):
        continue
    places = cache.followed[0].places[0, 0].tolist()
    assert places == [-1, -1, -1, -1, 0, 1, 0, 1, 0, 1, 2, 3, 4, 5, 6, 7]


def test_gradients_stay_as_they_were(llama: Any) -> None:
    cache = StreamingCache(llama, 2, 6)
    outputs = cache.read(llama, ids(1, 12), 6)
    next(outputs)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("tokens", "given", "match"),
    [
        (ids(1, 1), {}, "at least two tokens"),
        (ids(1, 9), {"chunk": 0}, "chunk = 0"),
    ],
)
def test_bad_input_is_refused(llama: Any, tokens: Tensor, given: dict[str, Any], match: str) -> None:
    with pytest.raises(InputError, match=match):
        StreamingCache(llama, 2, 6).prefill(llama, tokens, **given)


def test_another_model_is_refused(llama: Any) -> None:
    with pytest.raises(InputError, match="another model"):
        StreamingCache(llama, 2, 6).prefill(deepcopy(llama), ids(1, 9))


@pytest.mark.parametrize("name", ["llama", "falcon_h1", "jamba", "doge"])
def test_who_reads_several_tokens_at_once(name: str) -> None:
    model = FAMILIES[name].build("eager" if name == "doge" else "sdpa")
    assert at_once(model, StreamingCache(model, 2, 6)) is (name in ("llama", "falcon_h1"))


def test_layers_that_read_anothers_keys_are_told_by_the_model_too() -> None:
    """transformers 5.17 has nothing in a cache that would tell them."""
    empty = DynamicCache()
    model = FAMILIES["llama"].build("sdpa")
    assert at_once(model, empty)
    model.config.num_kv_shared_layers = 1
    assert not at_once(model, empty)
