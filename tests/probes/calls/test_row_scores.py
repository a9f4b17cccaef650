"""What scores tell of each row, against attention written out in double precision."""

from __future__ import annotations

import math

import pytest
import torch

from sinkscope.probes.calls import call as calls
from sinkscope.probes.calls.chunks import chunks
from sinkscope.probes.calls.row_scores import RowScores
from tests.probes.calls.test_call import OPTIONS, random_call, written_out

LINEAR = ("plain", "sink per head", "sink per query")


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("elements", [64 * 37 * 4, 2**21])
@pytest.mark.parametrize("first", ["entropy", "spread"])
def test_each_row(options: str, elements: int, first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "ELEMENTS", elements)
    call = random_call(**OPTIONS[options])
    whole, lse = written_out(call)
    seen = torch.ones(37, 37, dtype=torch.bool).tril()
    sink = None if call.sink is None else call.sink.double().expand(2, 4, 37)
    for chunk in chunks(call, with_scores=True):
        found, at = chunk.row_scores, (chunk.samples, slice(None), chunk.rows)
        assert isinstance(found, RowScores)
        weights, visible = whole[at][..., chunk.columns], seen[chunk.rows, chunk.columns]
        torch.testing.assert_close(chunk.weights.double(), weights, atol=1e-5, rtol=0)
        scores = (weights.log() + lse[at][..., None]).where(visible, torch.nan)
        largest = scores.abs().nan_to_num(nan=0.0).amax(-1)
        torch.testing.assert_close(found.largest.double(), largest, atol=1e-5, rtol=1e-5)
        outcomes = torch.cat([scores, scores[..., :0] if sink is None else sink[at][..., None]], -1)
        getattr(found, first)
        entropy = torch.special.entr((outcomes - lse[at][..., None]).exp()).nansum(-1)
        torch.testing.assert_close(found.entropy.double(), entropy, atol=1e-5, rtol=1e-5)
        assert (found.spread is None) is (options in LINEAR)
        if found.spread is not None:
            spread, count = found.spread
            assert count.expand_as(entropy).equal((~outcomes.isnan()).sum(-1).float())
            centered = (outcomes - outcomes.nanmean(-1, keepdim=True)).nan_to_num(nan=0.0)
            torch.testing.assert_close(spread.double(), centered.norm(dim=-1), atol=1e-4, rtol=1e-4)


def test_a_sink_without_mass_and_rows_that_do_not_count_add_nothing() -> None:
    real = torch.ones(2, 37, dtype=torch.bool)
    real[1, :9] = False
    closed, without = (random_call(sink=sink) for sink in (torch.full((1, 4, 1), -torch.inf), None))
    [of_closed], [of_none] = (list(chunks(call, with_scores=True)) for call in (closed, without))
    assert of_closed.row_scores is not None
    assert of_none.row_scores is not None
    padded = random_call(real=real)
    [chunk] = chunks(padded, with_scores=True)
    assert chunk.row_scores is not None
    assert not chunk.row_scores.entropy[1, :, :9].any()
    assert (chunk.row_scores.entropy[0, :, 1:] > 0).all()
    assert of_closed.row_scores.entropy.isfinite().all()
    assert of_closed.row_scores.entropy[:, :, 0].abs().max() < 1e-6  # one key has all of it
    assert of_none.row_scores.entropy[:, :, 1:].max() < math.log(37)


@pytest.mark.parametrize("shift", [0.0, 300.0])
def test_flat_rows_have_the_entropy_of_their_keys(shift: float) -> None:
    """However large the logits are that all keys share: taken off before anything is added up."""
    call = random_call(37, 37)
    call.query.fill_(1.0)
    call.key.fill_(shift / (0.4 * 8))
    [chunk] = chunks(call, with_scores=True)
    assert chunk.row_scores is not None
    expected = torch.arange(1, 38).double().log().expand(2, 4, -1)
    torch.testing.assert_close(chunk.row_scores.entropy.double(), expected, atol=1e-4, rtol=1e-5)
