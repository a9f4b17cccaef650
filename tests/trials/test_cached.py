"""A comparison holds the full cache, pairs by text, and says where it comes from."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from sinkscope.errors import InputError
from sinkscope.trials import CacheComparison, Needles, compare_caches, unchanged, stream_nll
from tests.trials.caches import Lookup, keeping, llama, texts, twin

CONTEXT = 12


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return llama()


@pytest.fixture(scope="module")
def found(model: LlamaForCausalLM) -> CacheComparison:
    arms = [twin(), keeping(1, 3), keeping(1, 6), keeping(0, 4, control=True)]
    return compare_caches(model, texts(7, 18), arms, context=CONTEXT, generate=5, rounds=1, batch_size=3)


def test_the_full_cache_is_always_first(found: CacheComparison) -> None:
    assert found.arms == ["full", "twin", "1+3", "1+6", "0+4"]
    row = found.table().iloc[0]
    assert (row["kept"], row["loss"], row["kl"], row["same"], row["agreed"]) == (1, 0, 0, 1, 5)


def test_a_twin_of_the_full_cache_loses_nothing(found: CacheComparison) -> None:
    row = found.table().set_index("arm").loc["twin"]
    assert (row["kept"], row["loss"], row["loss_low"], row["loss_high"], row["same"], row["agreed"]) == (
        1,
        0,
        0,
        0,
        1,
        5,
    )


def test_kept_is_the_share_of_bytes_behind_the_context(found: CacheComparison) -> None:
    assert found.kept("1+3") == 4 / CONTEXT
    assert found.kept("1+6") == 7 / CONTEXT
    bytes_of_a_token = 2 * 2 * 2 * 8 * 4
    assert float(found.data["held"].sel(arm="full")) == CONTEXT * bytes_of_a_token
    # The last token is predicted, not read.
    assert float(found.data["held_at_end"].sel(arm="full")) == 17 * bytes_of_a_token


def test_losses_are_paired_by_text_however_the_texts_are_batched(
    found: CacheComparison, model: LlamaForCausalLM
) -> None:
    ids = texts(7, 18)
    nll = {arm.name: stream_nll(model, ids, arm, context=CONTEXT).mean(1) for arm in (unchanged(), keeping(1, 3))}
    np.testing.assert_allclose(found.data["nll"].sel(arm="1+3").values, nll["1+3"], atol=1e-6)
    difference = nll["1+3"] - nll["full"]
    loss = found.loss("1+3")
    assert loss.value == pytest.approx(float(difference.mean()), abs=1e-6)
    assert loss.low < loss.value < loss.high
    # The interval is that of the differences, not of two independent means.
    assert loss.high - loss.low < float(difference.max() - difference.min())
    back = found.loss("full", against="1+3")
    assert back.value == pytest.approx(-loss.value)
    assert found.table().set_index("arm").loc["full", "perplexity"] == pytest.approx(
        math.exp(float(nll["full"].mean())), rel=1e-6
    )


def test_what_was_not_asked_for_is_absent(model: LlamaForCausalLM) -> None:
    plain = compare_caches(model, texts(2, 14), [keeping(1, 3)], context=CONTEXT, rounds=0)
    assert not {"recall", "agreed", "step_ms"} & set(plain.table().columns)
    assert plain.plot().keys() == {"Nats lost"}
    with pytest.raises(InputError, match="needles"):
        plain.recall("1+3")


def test_recall_is_that_of_what_is_still_held() -> None:
    asked = Needles(length=60, pairs=6, asked=4).draw(10, seed=0)
    ids = Needles(length=66).draw(4, seed=1).context
    found = compare_caches(Lookup(192), ids, [keeping(0, 30)], context=60, needles=asked, rounds=0, batch_size=4)
    held = asked.places >= 60 - 30 + 2 * torch.arange(4)
    assert found.recall("full").value == 1
    assert found.recall("0+30").value == pytest.approx(float(held.double().mean()))
    np.testing.assert_array_equal(found.data["recall"].sel(arm="0+30").values, held.double().numpy())
    assert found.plot().keys() == {"Nats lost", "Recall"}


def test_it_is_read_back_as_it_was_written(found: CacheComparison, tmp_path: Path) -> None:
    found.save(tmp_path / "comparison.nc")
    again = CacheComparison.load(tmp_path / "comparison.nc")
    assert again.table().equals(found.table())
    assert again.record == found.record
    assert again.record["context"] == CONTEXT
    assert len(again.record["ids_sha256"]) == 64


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.nc").write_text("no netCDF")
    with pytest.raises(InputError, match="cannot read"):
        CacheComparison.load(tmp_path / "other.nc")


def test_progress_ends_at_its_total(model: LlamaForCausalLM) -> None:
    steps: list[tuple[int, int, str]] = []
    compare_caches(
        model, texts(3, 18), [keeping(1, 3)], context=CONTEXT, generate=2, rounds=1, batch_size=2,
        progress=lambda *now: steps.append(now),
    )  # fmt: skip
    assert [done for done, _, _ in steps] == sorted(done for done, _, _ in steps)
    assert steps[-1][0] == steps[-1][1]
    assert steps[-1][2].startswith("full ")


def test_controls_are_drawn_and_marked(found: CacheComparison) -> None:
    assert found.table()["control"].tolist() == [False, False, False, False, True]
    lines = {trace.name: trace.line.dash for trace in found.plot()["Nats lost"].data}
    assert lines.keys() == {"twin", "keeping"}


@pytest.mark.parametrize(
    ("arms", "said"),
    [([], "at least one arm"), ([unchanged()], "rename it"), ([keeping(1, 2), keeping(1, 2)], "two arms are named")],
)
def test_arms_without_names_of_their_own_are_refused(model: LlamaForCausalLM, arms: list, said: str) -> None:
    with pytest.raises(InputError, match=said):
        compare_caches(model, texts(2, 18), arms, context=CONTEXT)


def test_timing_needs_tokens_behind_the_context(model: LlamaForCausalLM) -> None:
    with pytest.raises(InputError, match="timing needs"):
        compare_caches(model, texts(2, 14), [keeping(1, 2)], context=CONTEXT)
