"""Trials through caches whose every number is known: pairs by text, bytes, recall, times; and files of before."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

import sinkscope as ss
from sinkscope.errors import InputError
from sinkscope.report.stored import page_of
from sinkscope.trials import Asked, Needles, Texts, ThroughCache, Trial, Written, load, run, stream_nll, unchanged
from tests.trials.caches import Lookup, keeping, llama, texts, twin

CONTEXT = 12
BEFORE = Path(__file__).parent / "before"


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return llama()


@pytest.fixture(scope="module")
def trial(model: LlamaForCausalLM) -> Trial:
    arms = [twin(), keeping(1, 3), keeping(1, 6), keeping(0, 4)]
    return run(model, texts(7, 18), arms, reading=ThroughCache(CONTEXT), rounds=1, batch_size=3)


def test_the_full_cache_is_always_first(trial: Trial) -> None:
    assert trial.arms == ["full", "twin", "1+3", "1+6", "0+4"]
    row = trial.table().iloc[0]
    assert (row["bytes_share"], row["lost"], row["kl"], row["agreement"], row["step_ratio"]) == (1, 0, 0, 1, 1)


def test_a_twin_of_the_full_cache_loses_nothing(trial: Trial) -> None:
    row = trial.table().set_index("arm").loc["twin"]
    found = [row[name] for name in ("bytes_share", "lost", "lost_low", "lost_high", "kl", "agreement")]
    assert found == [1, 0, 0, 0, 0, 1]


def test_what_is_held_is_the_share_of_bytes_after_the_context(trial: Trial) -> None:
    table = trial.table().set_index("arm")
    assert table.loc["1+3", "bytes_share"] == 4 / CONTEXT
    assert table.loc["1+6", "bytes_share"] == 7 / CONTEXT
    assert table.loc["full", "bytes"] == CONTEXT * 2 * 2 * 2 * 8 * 4  # of a token: layers, keys, heads, channels, fp32


def test_losses_are_paired_by_text_however_the_texts_are_batched(trial: Trial, model: LlamaForCausalLM) -> None:
    ids = texts(7, 18)
    nll = {arm.name: stream_nll(model, ids, arm, context=CONTEXT).mean(1) for arm in (unchanged(), keeping(1, 3))}
    np.testing.assert_allclose(trial.values("1+3", "nats"), nll["1+3"], atol=1e-6)
    difference = nll["1+3"] - nll["full"]
    lost = trial.cost("1+3", "nats")
    assert lost.value == pytest.approx(float(difference.mean()), abs=1e-6)
    assert lost.low < lost.value < lost.high
    # The interval is that of the differences, not of two independent means.
    assert lost.high - lost.low < 2 * float(difference.max() - difference.min())
    assert trial.difference("full", "1+3", "nats").value == pytest.approx(-lost.value)


def test_what_was_not_asked_for_is_absent(model: LlamaForCausalLM) -> None:
    plain = run(model, texts(2, 14), [keeping(1, 3)], reading=ThroughCache(CONTEXT))
    assert not {"recall", "recall_seen", "step_ms"} & set(plain.table().columns)
    with pytest.raises(InputError, match="no recall"):
        plain.mean("1+3", "recall")


def test_recall_is_that_of_what_is_still_held() -> None:
    asked = Needles(length=60, pairs=6, asked=4).draw(10, seed=0)
    ids = Needles(length=66).draw(4, seed=1).context
    reading = ThroughCache(60)
    found = run(Lookup(192), Texts.of_ids(ids), [keeping(0, 30)], reading=reading, needles=asked, batch_size=4)
    held = asked.places >= 60 - 30 + 2 * torch.arange(4)
    assert found.mean("full", "recall").value == 1
    assert found.mean("0+30", "recall").value == pytest.approx(float(held.double().mean()))
    np.testing.assert_array_equal(found.data["recall"].sel(arm="0+30").values, held.double().numpy())
    np.testing.assert_allclose(found.values("0+30", "recall"), held.double().mean(1))
    assert found.table().set_index("arm").loc["0+30", "recall_low"] < found.mean("0+30", "recall").value


def test_tokens_are_written_until_the_first_other_one(model: LlamaForCausalLM) -> None:
    found = run(model, texts(4, CONTEXT), [twin(), keeping(0, 1)], reading=Written(5))
    assert found.values("twin", "agreement").tolist() == [1.0] * 4
    assert found.mean("0+1", "agreement").value < 1


def test_it_is_read_back_as_it_was_written(trial: Trial, tmp_path: Path) -> None:
    trial.save(tmp_path / "trial.nc")
    again = load(tmp_path / "trial.nc")
    assert again.table().equals(trial.table())
    assert again.record == trial.record


def test_comparisons_of_before_are_read() -> None:
    """Written by the version of before trials: `compare_caches` of three arms with two kinds of controls."""
    old = load(BEFORE / "policies.nc")
    assert old.arms == ["full", "streaming@12", "streaming@12+place", "random@12"]
    assert old.controls("streaming@12") == ["streaming@12+place"]
    assert old.cost("streaming@12").value == pytest.approx(1.224477, abs=1e-6)
    assert old.table().set_index("arm").loc["streaming@12", "bytes_share"] == pytest.approx(0.370312, abs=1e-6)
    assert "random" in old.verdict
    recalled = load(BEFORE / "recalled.nc")
    assert recalled.mean("0+30", "recall").value == pytest.approx(0.3)


@pytest.mark.slow
def test_pages_are_made_of_files_and_folders_of_trials(trial: Trial, tmp_path: Path) -> None:
    (tmp_path / "comparison.nc").write_bytes((BEFORE / "recalled.nc").read_bytes())
    (tmp_path / "new").mkdir()
    trial.save(tmp_path / "new" / "trial.nc")
    for path in (tmp_path, tmp_path / "comparison.nc", tmp_path / "new", tmp_path / "new" / "trial.nc"):
        page = page_of(path)
        assert page is not None
        assert page.sections


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.nc").write_text("no netCDF")
    with pytest.raises(InputError, match="cannot read"):
        load(tmp_path / "other.nc")


def test_progress_ends_at_its_total(model: LlamaForCausalLM) -> None:
    steps: list[tuple[int, int, str]] = []
    reading, ids = ThroughCache(CONTEXT), texts(3, 20)
    asked = Asked(ids[:, :CONTEXT], ids[:, 14:16], ids[:, 16:18], ids[:, 14:16])
    run(
        model, texts(3, 18), [keeping(1, 3)], reading=reading, rounds=1, batch_size=2,
        needles=asked, progress=lambda *now: steps.append(now),
    )  # fmt: skip
    assert [done for done, _, _ in steps] == sorted(done for done, _, _ in steps)
    assert steps[-1][0] == steps[-1][1]


@pytest.mark.parametrize(
    ("arms", "said"),
    [
        ([], "at least one arm"),
        ([unchanged()], "part of every trial"),
        ([keeping(1, 2), keeping(1, 2)], "its own name"),
    ],
)
def test_arms_without_names_of_their_own_are_refused(model: LlamaForCausalLM, arms: list, said: str) -> None:
    with pytest.raises(InputError, match=said):
        run(model, texts(2, 18), arms, reading=ThroughCache(CONTEXT))


def test_timing_needs_tokens_after_the_context(model: LlamaForCausalLM) -> None:
    with pytest.raises(InputError, match="timing needs"):
        run(model, texts(2, 14), [keeping(1, 2)], reading=ThroughCache(CONTEXT), rounds=1)


def test_old_names_say_the_new_ones(model: LlamaForCausalLM) -> None:
    with pytest.warns(DeprecationWarning, match=r"CacheComparison is sinkscope\.trials\.Trial now"):
        assert ss.evaluate.CacheComparison is Trial
    with pytest.warns(DeprecationWarning, match=r"compare_caches is sinkscope\.trials\.run now"):
        compare = ss.evaluate.compare_caches
    found = compare(model, texts(2, 18), [keeping(1, 3)], context=CONTEXT, rounds=0)
    expected = run(model, texts(2, 18), [keeping(1, 3)], reading=ThroughCache(CONTEXT))
    np.testing.assert_array_equal(found.values("1+3"), expected.values("1+3"))
    with warnings.catch_warnings(), pytest.raises(AttributeError, match="no attribute"):
        ss.evaluate.nothing_of_the_kind  # noqa: B018
    with pytest.warns(DeprecationWarning, match="arm"), pytest.raises(InputError, match="control=True is not read"):
        ss.evaluate.arm("1+3", lambda model: None, control=True)
    for name in (*ss.evaluate.MOVED, *ss.evaluate.OTHERWISE):
        with pytest.warns(DeprecationWarning, match=name):
            assert getattr(ss.evaluate, name)
