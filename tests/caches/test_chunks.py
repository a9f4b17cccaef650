"""Chunks that were read apart and joined, compared with one pass over copies of the tokens under written masks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

import sinkscope as ss
from sinkscope.caches import Chunks, join_chunks
from sinkscope.errors import InputError, UnsupportedModelError
from tests.caches.families import VARIANTS
from tests.families.family import Host
from tests.families.registry import COLLECTED, FAMILIES
from tests.trials.caches import llama, texts

LENGTHS, MORE = (7, 5, 9), 6
TOTAL = sum(LENGTHS)
SCALE = 1e-5  # of the largest logit
EVERY = FAMILIES | COLLECTED | VARIANTS


def after(model: Any, chunks: Chunks, ids: Tensor) -> Tensor:
    """The logits of what follows the chunks."""
    positions = torch.arange(chunks.ids.shape[1], ids.shape[1]).expand(len(ids), -1)
    with torch.no_grad():
        return model(
            input_ids=ids[:, chunks.ids.shape[1] :], position_ids=positions, past_key_values=chunks.cache(model)
        ).logits


def plain(model: Any, ids: Tensor) -> Tensor:
    with torch.no_grad():
        return model(input_ids=ids).logits[:, TOTAL:]


def naive(
    model: Any, ids: Tensor, recomputed: Tensor | None = None, dropped: Tensor | None = None, ahead: int = 0
) -> Tensor:
    """One pass without a cache. A row holds, for each token of the chunks, a copy that sees its own chunk alone, then a
    copy of each token that is recomputed, then what follows.
    """
    rows = []
    for row, text in enumerate(ids):
        alone = [
            (place, number, "alone")
            for number, length in enumerate(LENGTHS)
            for place in range(sum(LENGTHS[:number]), sum(LENGTHS[:number]) + length)
        ]
        # The first chunk's beginning once more in front of each later chunk: seen there, and nowhere else.
        before = [(j - ahead + sum(LENGTHS[:n]), n, "ahead") for n in range(1, len(LENGTHS)) for j in range(ahead)]
        again = [] if recomputed is None else [(int(p), -1, "again") for p in recomputed[row].nonzero()[:, 0]]
        rest = [(place, -1, "rest") for place in range(TOTAL, ids.shape[1])]
        copies = [*before, *alone, *again, *rest]
        redone = {place for place, _, kind in copies if kind == "again"}
        gone = set() if dropped is None else set(dropped[row].nonzero()[:, 0].tolist())

        def sees(query: Any, key: Any, redone: set[int] = redone, gone: set[int] = gone) -> bool:
            place, number, kind = query
            if key[0] > place:
                return False
            if kind in ("alone", "ahead"):
                return bool(key[2] in ("alone", "ahead") and key[1] == number)
            if key[2] == "ahead" or (key[2] == "alone" and key[0] in redone):
                return False
            return not (kind == "rest" and key[2] != "rest" and key[0] in gone)

        mask = torch.tensor([[sees(query, key) for key in copies] for query in copies])[None, None]
        tokens = [
            int(text[place - sum(LENGTHS[:number]) + ahead]) if kind == "ahead" else int(text[place])
            for place, number, kind in copies
        ]
        with torch.no_grad():
            logits = model(
                input_ids=torch.tensor([tokens]),
                position_ids=torch.tensor([[place for place, _, _ in copies]]),
                attention_mask=torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min),
                use_cache=False,
            ).logits
        rows.append(logits[:, -len(rest) :])
    return torch.cat(rows)


def some(seed: int, count: int, first: int = LENGTHS[0]) -> Tensor:
    """A mask of so many tokens of each of two texts."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.stack([first + torch.randperm(TOTAL - first, generator=generator)[:count] for _ in range(2)])
    return torch.zeros(2, TOTAL, dtype=torch.bool).scatter_(1, chosen, True)


def close(got: Tensor, expected: Tensor) -> bool:
    return float((got - expected).abs().max()) <= SCALE * float(expected.abs().max())


@pytest.fixture(scope="module", params=["eager", "sdpa"])
def model(request: pytest.FixtureRequest) -> Any:
    return llama(attn_implementation=request.param)


@pytest.fixture(scope="module")
def ids() -> Tensor:
    return texts(2, TOTAL + MORE)


def test_joined_chunks_see_their_own_chunk_alone(model: Any, ids: Tensor) -> None:
    expected = naive(model, ids)
    assert close(after(model, join_chunks(model, ids[:, :TOTAL], LENGTHS), ids), expected)
    assert not close(plain(model, ids), expected)


@pytest.mark.parametrize("count", [1, 4, 11])
def test_recomputed_tokens_see_everything_before_them(model: Any, ids: Tensor, count: int) -> None:
    tokens, chunks = some(count, count), join_chunks(model, ids[:, :TOTAL], LENGTHS)
    before = [keys.clone() for keys, _ in chunks.layers]
    assert close(after(model, chunks.recomputed(model, tokens), ids), naive(model, ids, tokens))
    assert all(torch.equal(keys, old) for (keys, _), old in zip(chunks.layers, before, strict=True))


def test_dropped_tokens_are_not_seen_and_positions_stay(model: Any, ids: Tensor) -> None:
    tokens, redone = some(2, 3, first=0), some(3, 4)
    chunks = join_chunks(model, ids[:, :TOTAL], LENGTHS)
    assert close(after(model, chunks.without(tokens), ids), naive(model, ids, dropped=tokens))
    both = chunks.recomputed(model, redone).without(tokens)
    assert close(after(model, both, ids), naive(model, ids, redone, tokens))
    cache = both.cache(model)
    assert (cache.get_seq_length(), cache.layers[0].keys.shape[2]) == (TOTAL, TOTAL - 3)
    with pytest.raises(InputError, match="dropped"):
        cache.crop(-1)


@pytest.mark.parametrize("ahead", [1, 3])
def test_chunks_behind_the_beginning_of_the_first(model: Any, ids: Tensor, ahead: int) -> None:
    chunks = join_chunks(model, ids[:, :TOTAL], LENGTHS, ahead=ahead)
    assert chunks.layers[0][0].shape[2] == TOTAL
    assert close(after(model, chunks, ids), naive(model, ids, ahead=ahead))


@pytest.mark.parametrize(
    ("family", "host"),
    [
        ("llama", "eager"),
        ("qwen3", "sdpa"),
        ("cohere", "sdpa"),
        ("phi", "sdpa"),
        ("deepseek_v3", "eager"),
        ("olmo2", "sdpa"),
        ("llama, yarn", "sdpa"),
        ("mistral, no window", "eager"),
    ],
)
def test_one_chunk_and_all_tokens_recomputed_are_the_plain_cache(family: str, host: Host) -> None:
    model = EVERY[family].build(host)
    ids = torch.randint(3, 40, (2, TOTAL + MORE), generator=torch.Generator().manual_seed(0))
    expected = plain(model, ids)
    assert close(after(model, join_chunks(model, ids[:, :TOTAL], (TOTAL,)), ids), expected)
    chunks = join_chunks(model, ids[:, :TOTAL], LENGTHS)
    assert not close(after(model, chunks, ids), expected)
    for first in (0, LENGTHS[0]):  # the first chunk is exact already
        tokens = (torch.arange(TOTAL) >= first).expand(2, -1)
        assert close(after(model, chunks.recomputed(model, tokens), ids), expected)


def test_a_chunk_moves_with_its_place() -> None:
    """In another order, each chunk's values are those that it had, and its keys rotated ones."""
    model, ids = llama(), texts(1, TOTAL)
    first, second, third = ids.split(LENGTHS, 1)
    one = join_chunks(model, ids, LENGTHS)
    other = join_chunks(model, torch.cat([second, first, third], 1), (5, 7, 9))
    for (keys, values), (moved, same) in zip(one.layers, other.layers, strict=True):
        assert torch.equal(values[:, :, 7:12], same[:, :, :5])
        assert torch.allclose(keys[:, :, 12:], moved[:, :, 12:], atol=1e-6)
        assert not torch.allclose(keys[:, :, 7:12], moved[:, :, :5], atol=1e-3)


@pytest.mark.parametrize("dropped", [False, True])
def test_generate_continues_a_joined_cache(dropped: bool) -> None:
    model, ids = llama(), texts(2, TOTAL + 2)
    chunks = join_chunks(model, ids[:, :TOTAL], LENGTHS)
    chunks = chunks.without(some(0, 2)) if dropped else chunks
    written = model.generate(ids, past_key_values=chunks.cache(model), max_new_tokens=3, do_sample=False)
    for step in range(3):
        logits = after(model, chunks, written[:, : TOTAL + 2 + step])
        assert torch.equal(logits[:, -1].argmax(-1), written[:, TOTAL + 2 + step])


def test_half_precision_keeps_its_dtype() -> None:
    model, ids = llama().bfloat16(), texts(1, TOTAL + MORE)
    chunks = join_chunks(model, ids[:, :TOTAL], LENGTHS).recomputed(model, some(0, 3)[:1])
    assert {part.dtype for layer in chunks.layers for part in layer} == {torch.bfloat16}
    assert bool(torch.isfinite(after(model, chunks, ids)).all())


def test_the_deviation_is_that_of_values() -> None:
    model, ids = llama(), texts(2, TOTAL)
    chunks, at_once = join_chunks(model, ids, LENGTHS), join_chunks(model, ids, (TOTAL,))
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(ids, past_key_values=cache)
    expected = (chunks.layers[1][1] - cache.layers[1].values).square().sum((1, 3))
    assert torch.allclose(chunks.deviation(at_once), expected, atol=1e-6)
    assert float(chunks.deviation(at_once)[:, : LENGTHS[0]].max()) < 1e-9
    assert float(chunks.deviation(at_once, 0).max()) < 1e-9  # layer 0 has seen no other token


@pytest.mark.parametrize(
    ("family", "why"),
    [
        ("gpt2", "absolute positions"),
        ("opt", "absolute positions"),
        ("bloom", "ALiBi"),
        ("mpt", "ALiBi"),
        ("mistral", "window"),
        ("gemma3", "window"),
        ("gpt_oss", "window"),
        ("jamba", "state"),
        ("llama, dynamic", "changes the frequencies"),
        ("falcon_alibi", "tokens seen"),
        ("t5", "no decoder"),
        ("bert", "no decoder"),
    ],
)
def test_what_cannot_be_joined_is_refused_by_name(family: str, why: str) -> None:
    model = EVERY[family].build("eager")
    with pytest.raises(UnsupportedModelError, match=why):
        join_chunks(model, torch.randint(3, 30, (1, 8)), (4, 4))


def test_a_lab_model_joins_and_is_told_how_to_recompute() -> None:
    lab, ids = ss.load("nano"), texts(2, TOTAL + MORE)
    model = lab.to_llama()
    chunks = join_chunks(lab, ids[:, :TOTAL], LENGTHS)
    expected = after(model, join_chunks(model, ids[:, :TOTAL], LENGTHS), ids)
    assert float((after(lab, chunks, ids) - expected).abs().max()) < 1e-4 * float(expected.abs().max())
    with pytest.raises(UnsupportedModelError, match="to_llama"):
        chunks.recomputed(lab, some(0, 2))


@pytest.mark.parametrize("name", ["nano-encoder", "nano-hybrid"])
def test_shipped_models_that_cannot_be_joined(name: str) -> None:
    with pytest.raises(UnsupportedModelError, match=r"decoder|state"):
        join_chunks(ss.load(name), texts(1, 8), (4, 4))


@pytest.mark.parametrize(
    ("lengths", "options", "why"),
    [
        ((4, 5), {}, "whose sum"),
        ((), {}, "whose sum"),
        ((8, 0), {}, "at least 1"),
        ((4, 4), {"ahead": 5}, "ahead = 5"),
        ((4, 4), {"ahead": -1}, "ahead = -1"),
    ],
)
def test_lengths_that_do_not_fit(lengths: tuple[int, ...], options: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        join_chunks(llama(), texts(2, 8), lengths, **options)


def test_ids_of_16_bits() -> None:
    model, ids = llama(), texts(2, 8)
    found, wanted = (join_chunks(model, each, (4, 4)) for each in (ids.short(), ids))
    assert torch.equal(found.ids, wanted.ids)
    assert torch.equal(found.cache(model).layers[1].keys, wanted.cache(model).layers[1].keys)  # type: ignore[attr-defined]


def test_ids_that_are_none_of_the_models() -> None:
    with pytest.raises(InputError, match="40"):
        join_chunks(llama(), torch.tensor([[1, 40]]), (1, 1))


def test_masks_that_do_not_fit() -> None:
    model, ids = llama(), texts(2, 8)
    chunks, uneven = join_chunks(model, ids, (4, 4)), torch.zeros(2, 8, dtype=torch.bool)
    assert chunks.recomputed(model, uneven) is chunks
    uneven[0, 5] = True
    with pytest.raises(InputError, match="same number"):
        chunks.recomputed(model, uneven)
    with pytest.raises(InputError, match="expected a mask"):
        chunks.without(uneven[:, :7])
    with pytest.raises(InputError, match="at least one"):
        chunks.without(torch.ones(2, 8, dtype=torch.bool))
    with pytest.raises(InputError, match="already"):
        chunks.without(uneven[:1].expand(2, -1)).recomputed(model, uneven[:1].expand(2, -1))
    with pytest.raises(InputError, match="same whole texts"):
        chunks.deviation(join_chunks(model, texts(2, 8, seed=1), (8,)))
    with pytest.raises(InputError, match="layers 0 to 1"):
        chunks.deviation(chunks, 2)
