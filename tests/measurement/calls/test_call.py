"""Scores, log-sum-exp and chunks of one call, against attention written out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sinkscope.hooks.modules import Layer
from sinkscope.measurement.calls import call as calls
from sinkscope.measurement.calls.call import AttentionCall
from sinkscope.measurement.calls.chunks import RowScores, chunks
from sinkscope.measurement.calls.masks import Rule


def random_call(queries: int = 37, keys: int = 37, **options: object) -> AttentionCall:
    return AttentionCall(
        layer=Layer("layer", 0, "decoder"),
        query=3 * torch.randn(2, 4, queries, 8),
        key=torch.randn(2, 2, keys, 8),
        value=torch.randn(2, 2, keys, 6),
        mask=Rule(keys, causal=True, start=keys - queries),
        scaling=0.4,
        causal=True,
        query_start=keys - queries,
        key_start=0,
        own_keys=slice(keys - queries, keys),
        **options,
    )


def written_out(call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights and log-sum-exp in double precision, in transformers' order: scale, softcap, bias, mask, sink."""
    query, key = call.query.double(), call.key.double().repeat_interleave(2, 1)
    scores = query @ key.mT * call.scaling
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    if call.bias is not None:
        scores = scores + call.bias
    queries, keys = scores.shape[-2:]
    future = torch.ones(queries, keys).triu(keys - queries + 1).bool()
    exponentials = scores.masked_fill(future, -torch.inf).exp()
    total = exponentials.sum(-1)
    if call.sink is not None:
        total = total + call.sink.double().exp()
    return exponentials / total[..., None], total.log()


OPTIONS = {
    "plain": {},
    "softcap": {"softcap": 2.0},
    "bias": {"bias": torch.randn(1, 4, 37, 37)},
    "sink per head": {"sink": torch.randn(1, 4, 1)},
    "sink per query": {"sink": torch.randn(2, 4, 37)},
    "everything": {"softcap": 2.0, "bias": torch.randn(1, 4, 37, 37), "sink": torch.randn(1, 4, 1)},
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("elements", [1, 64 * 37 * 4, 2**21])
def test_chunks_put_together_are_the_whole_map(options: str, elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "ELEMENTS", elements)
    call = random_call(**OPTIONS[options])
    weights, lse = written_out(call)
    torch.testing.assert_close(call.lse.double(), lse, atol=1e-5, rtol=0)
    whole, count = torch.zeros(2, 4, 37, 37), 0
    for chunk in chunks(call):
        whole[chunk.samples, :, chunk.rows, chunk.columns] += chunk.weights
        count += 1
    assert count == (1 if elements == 2**21 else len(list(call.parts())))
    torch.testing.assert_close(whole.double(), weights, atol=1e-5, rtol=0)


def test_no_chunk_is_larger_than_the_budget_while_rows_allow_it() -> None:
    call = random_call(700, 700)
    sizes = [chunk.weights.numel() for chunk in chunks(call)]
    assert len(sizes) > 1
    assert max(sizes) <= calls.ELEMENTS


@pytest.mark.parametrize("mask", [Rule(700, True), Rule(700, True, window=30), Rule(700, False)])
def test_rows_that_see_few_keys_come_in_larger_chunks_of_no_more_scores(mask: Rule) -> None:
    call = replace(random_call(700, 700), mask=mask)
    rows = [rows for _, rows in call.parts()]
    assert [part.start for part in rows] == [0, *(part.stop for part in rows[:-1])]
    assert rows[-1].stop == 700
    heights = [part.stop - part.start for part in rows]
    assert heights[0] == (2 * calls.ROWS if mask.causal else calls.ROWS)
    extents = [mask.extent(slice(0, 2), part) for part in rows]
    areas = [height * (seen.stop - seen.start) for height, seen in zip(heights, extents, strict=True)]
    assert max(areas) <= calls.ROWS * 700


def test_chosen_columns_are_columns_of_the_whole_map() -> None:
    call = random_call(9, 37)
    index = torch.tensor([[0, 30, 36], [5, 6, 7]])
    scores = call.scores(slice(0, 2), slice(0, 9), index)
    whole = call.scores(slice(0, 2), slice(0, 9), slice(0, 37))
    for row in range(2):
        torch.testing.assert_close(scores[row], whole[row][..., index[row]], atol=1e-5, rtol=0)


def test_queries_that_do_not_count_have_no_weight() -> None:
    real = torch.ones(2, 37, dtype=torch.bool)
    real[0, :5] = False
    for chunk in chunks(random_call(real=real)):
        assert not chunk.weights[0, :, :5].any()
        assert torch.isfinite(chunk.weights).all()


def test_real_positions_are_found_behind_padding() -> None:
    real = torch.tensor([[False] * 30 + [True] * 7, [True] * 37])
    column, present = random_call(9, 37, real_keys=real).locate([0, 3, 20])
    assert column.tolist()[1] == [0, 3, 20]
    assert column.tolist()[0][:2] == [30, 33]
    assert present.tolist() == [[True, True, False], [True, True, True]]


def test_positions_that_an_evicting_cache_dropped_are_absent() -> None:
    call = replace(random_call(1, 10), query_start=29, key_start=20)
    column, present = call.locate([0, 20, 29])
    assert present.tolist() == [[False, True, True]] * 2
    assert column.tolist()[0][1:] == [0, 9]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("chosen", [1, 5, 36])  # few and many: a product of few keys lies the other way round
def test_weights_on_chosen_keys_are_those_of_the_map(options: str, chosen: int) -> None:
    call = random_call(**OPTIONS[options])
    whole, everything = written_out(call)[0], slice(0, 2)
    columns = torch.stack([torch.randperm(37)[:chosen] for _ in range(2)])
    for rows in (slice(0, 37), slice(3, 14)):
        expected = whole[:, :, rows].gather(-1, columns[:, None, None].expand(-1, 4, rows.stop - rows.start, -1))
        found = call.weights(everything, rows, columns)
        torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=0)
    found = call.weights(everything, slice(0, 37), slice(0, 37))
    torch.testing.assert_close(found.double(), whole, atol=1e-5, rtol=0)


def test_rows_that_do_not_count_weigh_nothing() -> None:
    real = torch.ones(2, 37, dtype=torch.bool)
    real[1, :9] = False
    call = replace(random_call(), real=real)
    whole = written_out(call)[0] * real[:, None, :, None]
    for told in (None, RowScores(call, ("entropy", "largest"))):
        for chunk in chunks(call, told):
            expected = whole[chunk.samples, :, chunk.rows, chunk.columns]
            torch.testing.assert_close(chunk.weights.double(), expected, atol=1e-5, rtol=0)
    found = call.weights(slice(0, 2), slice(0, 37), torch.tensor([[0], [3]]))
    assert not found[1, :, :9].any()
    assert found.isfinite().all()
