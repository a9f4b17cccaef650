"""What scores tell of each row, against attention written out in double precision."""

from __future__ import annotations

import math

import pytest
import torch

from sinkscope.measurement.calls import call as calls
from sinkscope.measurement.calls.call import AttentionCall
from sinkscope.measurement.calls.chunks import RowKind, RowScores, chunks
from tests.measurement.calls.test_call import OPTIONS, random_call, written_out

LINEAR = ("plain", "sink per head", "sink per query")


EVERYTHING: tuple[RowKind, ...] = ("largest", "entropy", "spread")


def told_of(call: AttentionCall, *asked: RowKind) -> RowScores:
    told = RowScores(call, asked or EVERYTHING)
    for _ in chunks(call, told):
        pass
    return told


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("elements", [64 * 37 * 4, 2**21])
@pytest.mark.parametrize("asked", [EVERYTHING, ("entropy",), ("spread",), ("largest",)])
def test_each_row(options: str, elements: int, asked: tuple[RowKind, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "ELEMENTS", elements)
    call = random_call(**OPTIONS[options])
    whole, lse = written_out(call)
    visible = torch.ones(37, 37, dtype=torch.bool).tril()
    sink = None if call.sink is None else call.sink.double().expand(2, 4, 37)
    told = RowScores(call, asked)
    for chunk in chunks(call, told):
        weights = whole[chunk.samples, :, chunk.rows, chunk.columns]
        torch.testing.assert_close(chunk.weights.double(), weights, atol=1e-5, rtol=0)
    scores = (whole.log() + lse[..., None]).where(visible, torch.nan)
    outcomes = torch.cat([scores, scores[..., :0] if sink is None else sink[..., None]], -1)
    if "largest" in asked:
        largest = scores.abs().nan_to_num(nan=0.0).amax(-1)
        torch.testing.assert_close(told.largest.double(), largest, atol=1e-5, rtol=1e-5)
    if "entropy" in asked:
        entropy = torch.special.entr((outcomes - lse[..., None]).exp()).nansum(-1)
        torch.testing.assert_close(told.entropy.double(), entropy, atol=1e-5, rtol=1e-5)
    assert (told.spread is None) is (options in LINEAR)
    if "spread" in asked and told.spread is not None:
        spread, count = told.spread
        assert count.equal((~outcomes.isnan()).sum(-1).float().expand_as(count))
        centered = (outcomes - outcomes.nanmean(-1, keepdim=True)).nan_to_num(nan=0.0)
        torch.testing.assert_close(spread.double(), centered.norm(dim=-1), atol=1e-4, rtol=1e-4)


def test_a_sink_without_mass_and_rows_that_do_not_count_add_nothing() -> None:
    real = torch.ones(2, 37, dtype=torch.bool)
    real[1, :9] = False
    closed, without = (random_call(sink=sink) for sink in (torch.full((1, 4, 1), -torch.inf), None))
    of_closed, of_none = told_of(closed).entropy, told_of(without).entropy
    padded = told_of(random_call(real=real)).entropy
    assert not padded[1, :, :9].any()
    assert (padded[0, :, 1:] > 0).all()
    assert of_closed.isfinite().all()
    assert of_closed[:, :, 0].abs().max() < 1e-6  # one key has all of it
    assert of_none[:, :, 1:].max() < math.log(37)


@pytest.mark.parametrize("shift", [0.0, 300.0])
def test_flat_rows_have_the_entropy_of_their_keys(shift: float) -> None:
    """However large the logits are that all keys share: taken off before anything is added up."""
    call = random_call(37, 37)
    call.query.fill_(1.0)
    call.key.fill_(shift / (0.4 * 8))
    expected = torch.arange(1, 38).double().log().expand(2, 4, -1)
    torch.testing.assert_close(told_of(call, "entropy").entropy.double(), expected, atol=1e-4, rtol=1e-5)
