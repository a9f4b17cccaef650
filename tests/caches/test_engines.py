"""Caches as engines run them, against references that follow an engine's own steps on lists of tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import rotate_half

import sinkscope as ss
from sinkscope.caches.engines import ENGINES, Piece, ServedCache, VllmFp8, decode, encode
from sinkscope.caches.sizes import held_bytes
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.grids import Fp8
from sinkscope.trials import Feed

TOKENS, CELLS, KEEP = 45, 12, 2
Seen = tuple[list[int], list[int], int]  # tokens that a query sees, the positions of their keys, the query's position


@pytest.fixture(scope="module")
def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=60,
        hidden_size=128,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.2,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def ids() -> Tensor:
    return torch.randint(3, 60, (2, TOKENS), generator=torch.Generator().manual_seed(1))


def llama_cpp(count: int, cells: int, keep: int) -> list[Seen]:
    """`pre_decode` of llama-server: seq_rm and seq_add on cells of (token, position)."""
    held: list[list[int]] = []
    found = []
    for token in range(count):
        if len(held) + 1 >= cells:
            n_keep = min(cells - 4, keep)
            n_left = len(held) - n_keep
            n_discard = n_left // 2
            held = [cell for cell in held if not n_keep <= cell[1] < n_keep + n_discard]
            for cell in held:
                cell[1] -= n_discard if cell[1] >= n_keep + n_discard else 0
        held.append([token, len(held)])
        found.append(([cell[0] for cell in held], [cell[1] for cell in held], held[-1][1]))
    return found


def mlx(count: int, cells: int, keep: int) -> list[Seen]:
    """`RotatingKVCache._update_in_place` on a list, with `offset` as the position."""
    ring: list[int] = []
    index, found = 0, []
    for offset in range(count):
        if len(ring) < cells:
            ring.append(-1)
        if index == cells:
            index = keep
        ring[index] = offset
        index += 1
        found.append((list(ring), list(ring), offset))
    return found


def executorch(count: int, cells: int, keep: int) -> list[Seen]:
    """`CachePositionsManagerWithSink`, the mask of sinks and window, and `RopeWithAttentionSink`."""
    window = (cells - keep) // 2
    positions, found = [-1] * (keep + 2 * window), []

    def slot(place: int) -> int:
        return place if place < keep else keep + (place - keep) % (2 * window)

    for place in range(count):
        positions[slot(place)] = place
        seen = [p for p in positions if p >= 0 and (p < keep or place - p < window)]
        found.append((seen, [slot(p) for p in seen], slot(place)))
    return found


def expected(model: LlamaForCausalLM, ids: Tensor, seen: list[Seen]) -> Tensor:
    """Logits where each query sees those tokens at those positions: loops over queries, and no cache."""
    rope = model.model.rotary_emb

    def at(x: Tensor, positions: list[int]) -> Tensor:
        cos, sin = rope(x, torch.tensor([positions]))
        return x * cos[:, None] + rotate_half(x) * sin[:, None]

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: float, **_: Any) -> Any:
        rows = []
        for place, (tokens, positions, own) in enumerate(seen):
            groups = module.num_key_value_groups
            keys = at(key[:, :, tokens], positions).repeat_interleave(groups, 1)
            weights = (at(query[:, :, [place]], [own]) @ keys.mT * scaling).softmax(-1)
            rows.append(weights @ value[:, :, tokens].repeat_interleave(groups, 1))
        return torch.cat(rows, 2).transpose(1, 2), None

    AttentionInterface.register("engine_by_loops", attend)
    before = model.config._attn_implementation
    model.config._attn_implementation = "engine_by_loops"
    try:
        with torch.no_grad():  # at position 0 nothing is turned, so the function is given keys as projected
            return model(ids, position_ids=torch.zeros_like(ids), use_cache=False).logits
    finally:
        model.config._attn_implementation = before


def stepped(model: nn.Module, ids: Tensor, cache: Any) -> Tensor:
    with torch.no_grad():
        feed = Feed(model, cache)
        return torch.stack([feed.read(ids[:, [place]]) for place in range(ids.shape[1])], 1)


RULES: dict[str, Callable[[int, int, int], list[Seen]]] = {"llama.cpp": llama_cpp, "mlx": mlx, "executorch": executorch}


@pytest.mark.parametrize("keep", [0, KEEP])
@pytest.mark.parametrize("name", RULES)
def test_a_stream_agrees_with_the_engines_own_steps(llama: LlamaForCausalLM, ids: Tensor, name: str, keep: int) -> None:
    found = stepped(llama, ids, ss.caches.engine(name, keep).cache(llama, CELLS))
    torch.testing.assert_close(found, expected(llama, ids, RULES[name](TOKENS, CELLS, keep)), atol=5e-4, rtol=0)


def test_the_references_differ(llama: LlamaForCausalLM, ids: Tensor) -> None:
    logits = [expected(llama, ids, rule(TOKENS, CELLS, KEEP)) for rule in RULES.values()]
    assert all(float((a - b).abs().max()) > 0.05 for a in logits for b in logits if a is not b)


@pytest.mark.parametrize("first", [0, 5, 11, 20])
@pytest.mark.parametrize("keep", [0, KEEP])
@pytest.mark.parametrize("name", RULES)
def test_many_tokens_at_once_are_read_as_one_by_one(
    llama: LlamaForCausalLM, ids: Tensor, name: str, keep: int, first: int
) -> None:
    cache: Any = ss.caches.engine(name, keep).cache(llama, CELLS)
    before = stepped(llama, ids[:, :first], cache) if first else None
    update, kept = cache.update, []

    def updated(*args: Any, **options: Any) -> Any:  # which transformers gives from 5.24 on
        keys, values = update(*args, **options)
        kept.append((cache.layers[args[2]].places[0, 0], keys.shape[2]))
        return keys, values

    cache.update = updated
    passes = [output.logits for output in cache.read(llama, ids[:, first:40])]
    assert all(len(places) == count and bool((places.diff() > 0).all()) for places, count in kept)
    parts = [*([] if before is None else [before]), *passes, stepped(llama, ids[:, 40:], cache)]
    found = torch.cat(parts, 1)
    torch.testing.assert_close(found, expected(llama, ids, RULES[name](TOKENS, CELLS, keep)), atol=5e-4, rtol=0)
    assert len(passes) < (40 - first) / 3, "most tokens go through the model with others"
    alone = ss.caches.engine(name, keep).cache(llama, CELLS)
    stepped(llama, ids, alone)
    assert held_bytes(cache) == held_bytes(alone)


@pytest.mark.parametrize("name", RULES)
def test_pieces_of_a_text_are_those_of_its_single_tokens(name: str) -> None:
    rule = ss.caches.engine(name, KEEP)
    places, seen = torch.empty(0, dtype=torch.long), 0
    alone = [(set(tokens) - {query}) for query, (tokens, *_) in enumerate(RULES[name](TOKENS, CELLS, KEEP))]
    while seen < TOKENS:
        piece = Piece.after(places, seen, rule, CELLS, min(7, TOKENS - seen))
        columns = torch.cat([places[piece.kept], torch.arange(seen, seen + len(piece.visible))])
        for row, query in zip(piece.visible, range(seen, TOKENS), strict=False):
            assert set(columns[row].tolist()) - {query} == alone[query]
        places, seen = columns[piece.left], seen + len(piece.visible)


@pytest.mark.parametrize("name", RULES)
def test_a_long_context_is_read_as_if_generated(llama: LlamaForCausalLM, ids: Tensor, name: str) -> None:
    rule = ss.caches.engine(name, KEEP)
    one_by_one = stepped(llama, ids, rule.cache(llama, CELLS))
    with torch.no_grad():
        feed = Feed(llama, rule.cache(llama, CELLS))
        assert torch.allclose(feed.read(ids[:, :30]), one_by_one[:, 29], atol=1e-4)
        assert torch.allclose(feed.read(ids[:, 30:31]), one_by_one[:, 30], atol=1e-4)
    generated = llama.generate(ids[:, :30], past_key_values=rule.cache(llama, CELLS), max_new_tokens=1, do_sample=False)
    assert torch.equal(generated[:, 30], one_by_one[:, 29].argmax(-1))


@pytest.mark.parametrize("name", RULES)
def test_a_context_one_token_longer_than_fits_is_read(llama: LlamaForCausalLM, ids: Tensor, name: str) -> None:
    rule = ss.caches.engine(name, KEEP)
    length = rule.seen_at_once(CELLS) + 1
    at_once, one_by_one = rule.cache(llama, CELLS), rule.cache(llama, CELLS)
    with torch.no_grad():
        last = llama(ids[:, :length], past_key_values=at_once, logits_to_keep=1).logits
        for place in range(length):
            expected = llama(ids[:, place : place + 1], past_key_values=one_by_one).logits
    torch.testing.assert_close(last, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", RULES)
def test_a_stream_holds_the_cells_that_the_engine_allocates(llama: LlamaForCausalLM, ids: Tensor, name: str) -> None:
    cache = ss.caches.engine(name, KEEP).cache(llama, CELLS)
    stepped(llama, ids[:1], cache)
    numbers = 2 * 2 * 64 * CELLS * 4  # layers, keys and values, channels of one head, bytes
    assert numbers <= held_bytes(cache) <= numbers + 8 * 2 * 2 * CELLS  # and where each token came from


def rotated(x: list[float], size: int) -> list[float]:
    """x·H, H[i][j] = (−1)^popcount(i & j) / √size."""
    parts = [x[start : start + size] for start in range(0, len(x), size)]
    signs = [[(-1) ** (i & j).bit_count() for j in range(size)] for i in range(size)]
    return [sum(a * b for a, b in zip(part, row, strict=True)) / size**0.5 for part in parts for row in signs]


def by_blocks(x: list[float], kind: str) -> list[float]:
    """ggml's `quantize_row_q8_0_ref` and `quantize_row_q4_0_ref`, and back. `tests/grids` has the other blocks."""
    found = []
    for start in range(0, len(x), 32):
        block = x[start : start + 32]
        largest = max(block, key=abs)
        scale = abs(largest) / 127 if kind == "q8_0" else largest / -8
        stored = float(torch.tensor(scale).half())
        for value in block:
            ratio = value / scale if scale else 0.0
            code = (
                int(abs(ratio) + 0.5) * (1 if ratio >= 0 else -1) if kind == "q8_0" else min(15, int(ratio + 8.5)) - 8
            )
            found.append(code * stored)
    return found


@pytest.mark.parametrize("kind", ["q8_0", "q4_0"])
@pytest.mark.parametrize(
    ("dim", "values", "size"), [(128, False, 128), (128, True, 64), (192, False, 64), (96, True, 1)]
)
def test_ggml_numbers_agree_with_the_reference_row_by_row(kind: Any, dim: int, values: bool, size: int) -> None:
    x = torch.randn(1, 1, 3, dim, generator=torch.Generator().manual_seed(2))
    x[0, 0, 1] = 0  # a block of zeros has no scale
    numbers = ENGINES[f"llama.cpp-{kind}"].numbers
    assert numbers is not None
    found = decode(encode(x, numbers[values]), numbers[values], dim, x.dtype)
    for row, wanted in zip(found[0, 0].tolist(), x[0, 0].tolist(), strict=True):
        rounded = rotated(by_blocks(rotated(wanted, size), kind), size)
        # A number that falls between two codes may go either way in fp32: none of these does.
        assert row == pytest.approx(rounded, abs=2e-6)


def test_fp8_has_no_scale_and_ends_at_448() -> None:
    x = torch.tensor([1e6, -1e6, 448.0, 447.0, 1.0625, 0.0078125, 2.0**-11, 0.0]).reshape(1, 1, 1, 8)
    stored = encode(x, Fp8())
    assert stored[0].element_size() == 1
    found = decode(stored, Fp8(), 8, x.dtype).flatten().tolist()
    assert found == [448, -448, 448, 448, 1.0, 0.0078125, 0, 0]  # three bits behind the point; least 2^-9


BITS = {
    "llama.cpp-q8_0": 8.5,
    "llama.cpp-q5_1": 6,
    "llama.cpp-q5_0": 5.5,
    "llama.cpp-q4_1": 5,
    "llama.cpp-iq4_nl": 4.5,
    "llama.cpp-q4_0": 4.5,
    "vllm-fp8": 8,
}


@pytest.mark.parametrize(("name", "bits"), BITS.items())
def test_rounded_caches_see_every_token_rounded_and_hold_fewer_bytes(
    llama: LlamaForCausalLM, ids: Tensor, name: str, bits: float
) -> None:
    rule = ss.caches.engine(name)
    cache = rule.cache(llama)
    with torch.no_grad():
        whole = llama(ids, past_key_values=cache, use_cache=True).logits
        again = stepped(llama, ids, rule.cache(llama))
        exact = llama(ids).logits
    torch.testing.assert_close(whole, again, atol=5e-3, rtol=5e-3)
    assert float((whole - exact).abs().max()) > 1e-3
    numbers = 2 * 2 * 2 * 64 * TOKENS
    assert held_bytes(cache) - 8 * TOKENS * 2 == pytest.approx(numbers * bits / 8)


def test_bad_engines_are_one_line(llama: LlamaForCausalLM) -> None:
    with pytest.raises(InputError, match=r"did you mean 'llama\.cpp'"):
        ss.caches.engine("llama-cpp")
    with pytest.raises(InputError, match="drops nothing"):
        ss.caches.engine("vllm-fp8", 2)
    with pytest.raises(InputError, match="needs at least 8"):
        ss.caches.engine("mlx").cache(llama, 7)
    with pytest.raises(InputError, match="no number of cells"):
        ENGINES["vllm-fp8"]().cache(llama, 7)
    cache, mask = ss.caches.engine("mlx").cache(llama, 20), torch.tensor([[0, 1, 1], [1, 1, 1]])
    with pytest.raises(InputError, match="padded rows"):
        llama(torch.ones(2, 3, dtype=torch.long), attention_mask=mask, past_key_values=cache, use_cache=True)
    cache = ss.caches.engine("mlx").cache(llama, 8)
    with pytest.raises(InputError, match="between them"):
        llama(torch.ones(1, 9, dtype=torch.long), past_key_values=cache, use_cache=True)


@torch.no_grad()
@pytest.mark.parametrize(
    ("rule", "cells"),
    [(ENGINES["mlx"](), CELLS), (ENGINES["vllm-fp8"](), None), (VllmFp8(skip=(1,)), None)],
    ids=["stream", "rounded", "skipped layer"],
)
def test_a_pass_that_was_interrupted_is_not_gone_on_with(
    llama: LlamaForCausalLM, ids: Tensor, rule: ServedCache, cells: int | None
) -> None:
    cache = rule.cache(llama, cells)
    llama(ids[:, :5], past_key_values=cache)

    def stop(*_: Any) -> None:
        raise MemoryError

    handle = llama.model.layers[1].register_forward_pre_hook(stop)
    with pytest.raises(MemoryError):
        llama(ids[:, 5:6], past_key_values=cache)
    handle.remove()
    with pytest.raises(InputError, match="seen 5 to 6 tokens: an earlier pass was interrupted"):
        llama(ids[:, 6:7], past_key_values=cache)
    cache.reset()
    llama(ids[:, :5], past_key_values=cache)


@torch.no_grad()
def test_embeddings_are_read_as_far_as_they_fit(llama: LlamaForCausalLM, ids: Tensor) -> None:
    cache, embedded = ss.caches.engine("mlx", KEEP).cache(llama, CELLS), llama.get_input_embeddings()(ids)
    with pytest.raises(InputError, match=r"13 tokens at once after 0.*give input_ids"):
        llama(inputs_embeds=embedded[:, : CELLS + 1], past_key_values=cache, logits_to_keep=1)
    llama(inputs_embeds=embedded[:, :CELLS], past_key_values=cache)
    with pytest.raises(InputError, match="2 tokens at once after 12"):
        llama(inputs_embeds=embedded[:, CELLS : CELLS + 2], past_key_values=cache, logits_to_keep=1)
    with pytest.raises(InputError, match="2 tokens at once after 12"):
        llama(ids[:, CELLS : CELLS + 2], past_key_values=cache, logits_to_keep=torch.tensor([0, 1]))
    found = llama(inputs_embeds=embedded[:, CELLS : CELLS + 1], past_key_values=cache).logits
    wanted = expected(llama, ids[:, : CELLS + 1], mlx(CELLS + 1, CELLS, KEEP))[:, -1:]
    torch.testing.assert_close(found, wanted, atol=5e-4, rtol=0)


@pytest.mark.parametrize("name", RULES)
def test_inference_mode_can_be_left(llama: LlamaForCausalLM, ids: Tensor, name: str) -> None:
    rule = ss.caches.engine(name, KEEP)
    wanted, cache, found = stepped(llama, ids, rule.cache(llama, CELLS)), rule.cache(llama, CELLS), []
    for place in range(TOKENS):
        with torch.inference_mode() if place % 2 == 0 else torch.no_grad():
            found.append(llama(ids[:, [place]], past_key_values=cache).logits[:, 0].clone())
    assert torch.equal(torch.stack(found, 1), wanted)


@torch.no_grad()
def test_what_an_engines_cache_cannot_do_is_one_line(llama: LlamaForCausalLM, ids: Tensor) -> None:
    cache = ss.caches.engine("mlx").cache(llama, CELLS)
    llama(ids[:, :3], past_key_values=cache)
    for call in (
        lambda: cache.batch_repeat_interleave(2),
        lambda: cache.batch_select_indices(torch.tensor([0])),
        lambda: cache.offload(0, False),
    ):
        with pytest.raises(InputError, match="cannot be"):
            call()


def test_absolute_positions_are_refused() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=32, n_layer=1, n_head=2, n_positions=64)).eval()
    with pytest.raises(UnsupportedModelError, match="gpt2"):
        ss.caches.engine("mlx").cache(model, 20)
