"""Trials against what is computed by hand, with planted arms and planted interruptions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, LlamaForCausalLM

from sinkscope.errors import InputError
from sinkscope.trials import Arm, OnePass, Texts, ThroughCache, Trial, Written, cached, load, run, split
from tests.trials.planted import beaten, ids, llama, noisy


def by_hand(
    model: LlamaForCausalLM, texts: Tensor, size: float, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """KL, loss and agreement of every text, over all tokens that have a next one."""
    found = []
    with torch.no_grad():
        for row, text in enumerate(texts):
            logits = model(text[None]).logits[0].double()
            noise = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1000 * seed + row)).double()
            p, q = logits.log_softmax(-1)[:-1], (logits + size * noise).log_softmax(-1)[:-1]
            kl = (p.exp() * (p - q)).sum(-1).mean()
            nats = -q.gather(-1, text[1:, None]).mean()
            found.append((kl, nats, (p.argmax(-1) == q.argmax(-1)).double().mean()))
    return tuple(np.array(column) for column in zip(*found, strict=True))  # type: ignore[return-value]


def test_scores_are_those_computed_text_by_text() -> None:
    model, texts = llama(), ids()
    trial = run(model, texts, [noisy("arm", 0.5, seed=3)], reading=OnePass(), batch_size=2)
    for score, expected in zip(("kl", "nats", "agreement"), by_hand(model, texts, 0.5, 3), strict=True):
        np.testing.assert_allclose(trial.values("arm", score), expected, atol=1e-5)
    assert trial.mean("full").value == 0
    assert trial.data["scored"].values.tolist() == [11.0] * 5


@pytest.mark.parametrize("size", [1, 3, 8])
def test_no_result_depends_on_the_batch_size(size: int) -> None:
    whole = run(llama(), ids(), [beaten(0.3, 0.6)], reading=OnePass(), batch_size=5, controls=2)
    parts = run(llama(), ids(), [beaten(0.3, 0.6)], reading=OnePass(), batch_size=size, controls=2)
    np.testing.assert_allclose(parts.data["kl"].values, whole.data["kl"].values, atol=1e-6)


def test_padding_and_what_is_padded_are_not_scored() -> None:
    model, texts = llama(), ids(2)
    mask = torch.ones_like(texts)
    mask[1, 7:] = 0
    trial = run(model, {"input_ids": texts, "attention_mask": mask}, [noisy("arm", 0.5)], reading=OnePass())
    assert trial.data["scored"].values.tolist() == [11.0, 6.0]
    alone = run(model, texts[:1], [noisy("arm", 0.5)], reading=OnePass())
    assert trial.values("arm")[0] == pytest.approx(alone.values("arm")[0], abs=1e-6)


def test_no_arm_is_scored_at_a_token_that_any_arm_touches() -> None:
    def touched(place: int) -> Any:
        def mask(texts: Texts) -> Tensor:
            assert texts.ids is not None
            return torch.zeros_like(texts.ids, dtype=torch.bool).index_fill(1, torch.tensor([place]), True)

        return mask

    arms = [noisy("one", 0.2, touched=touched(0)), noisy("two", 0.2, seed=1, touched=touched(4))]
    trial = run(llama(), ids(), arms, reading=OnePass())
    assert trial.data["scored"].values.tolist() == [9.0] * 5
    everything = [noisy("one", 0.2, touched=lambda texts: torch.ones_like(texts.ids, dtype=torch.bool))]  # type: ignore[arg-type]
    with pytest.raises(InputError, match="nothing is left"):
        run(llama(), ids(), everything, reading=OnePass())


@pytest.mark.parametrize("chunk", [1, 3, None])
def test_reading_through_a_full_cache_changes_nothing(chunk: int | None) -> None:
    model = llama()
    same = cached("cache", lambda model: DynamicCache(config=model.config))
    trial = run(model, ids(), [same], reading=ThroughCache(4, chunk))
    assert trial.mean("cache").value == pytest.approx(0, abs=1e-9)
    assert trial.data["scored"].values.tolist() == [8.0] * 5
    whole = run(model, ids(), [same], reading=ThroughCache(4, 1))
    np.testing.assert_allclose(trial.values("full", "nats"), whole.values("full", "nats"), atol=1e-5)
    # Keys and values of 4 tokens, 2 layers, 2 heads of 4, in 4 bytes.
    assert float(trial.data["bytes"].sel(arm="full")) == 2 * 4 * 2 * 2 * 4 * 4


def test_a_cache_that_forgets_is_told_from_one_that_does_not() -> None:
    class Forgetful(DynamicCache):
        def update(self, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
            keys, values = super().update(key, value, *args, **kwargs)
            if keys.shape[2] > key.shape[2]:
                values = torch.cat([torch.zeros_like(values[:, :, :4]), values[:, :, 4:]], 2)
            return keys, values

    arm = cached("forgets", lambda model: Forgetful(config=model.config))
    trial = run(llama(), ids(), [arm], reading=ThroughCache(4))
    assert trial.mean("forgets").low > 0


def test_written_tokens_agree_up_to_the_first_other_one() -> None:
    model = llama()
    arms = [cached("same", lambda model: DynamicCache(config=model.config)), noisy("noise", 8.0)]
    trial = run(model, ids(), arms, reading=Written(6))
    assert trial.values("same", "agreement").tolist() == [1.0] * 5
    assert trial.mean("noise", "agreement").value < 0.8
    assert "kl" not in trial.table()


def test_controls_are_matched_with_their_arm_and_paired_text_by_text() -> None:
    trial = run(llama(), ids(8), [beaten(0.2, 0.8)], reading=OnePass(), controls=3)
    names = trial.controls("arm")
    assert names == [f"random {draw} for arm" for draw in (1, 2, 3)]
    mean = np.mean([trial.values(name) for name in names], 0)
    np.testing.assert_allclose(trial.values("controls of arm"), mean)
    assert trial.difference("arm").value == pytest.approx(float((trial.values("arm") - mean).mean()))
    assert trial.difference("arm").high < 0
    assert "beats 3 random controls" in trial.verdict
    worse = run(llama(), ids(8), [beaten(0.8, 0.2)], reading=OnePass(), controls=3)
    assert "random controls of the same budget are better" in worse.verdict


def test_an_arm_may_be_compared_with_another_one_than_the_model() -> None:
    shifted = noisy("shifted", 0.7, seed=2)
    trial = run(llama(), ids(), [noisy("near", 0.7, seed=2, against="shifted"), shifted], reading=OnePass())
    assert trial.mean("near").value == pytest.approx(0, abs=1e-9)
    assert trial.cost("near", "nats").value == pytest.approx(0, abs=1e-9)
    assert trial.mean("shifted").value > 0.05
    with pytest.raises(InputError, match="compared with 'nothing'"):
        run(llama(), ids(), [noisy("near", 0.7, against="nothing")], reading=OnePass())


def test_equal_arms_run_once_and_are_listed() -> None:
    calls: list[tuple[str, slice]] = []
    arms = [
        noisy("a", 0.2, calls=calls, same="x"),
        noisy("b", 0.2, calls=calls, same="x"),
        noisy("c", 0.2, calls=calls),
    ]
    trial = run(llama(), ids(), arms, reading=OnePass())
    assert [name for name, _ in calls] == ["a", "c"]
    np.testing.assert_array_equal(trial.values("a"), trial.values("b"))
    assert "the same as 'a'" in trial.sentence("b")


def test_a_run_that_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    calls: list[tuple[str, slice]] = []
    made = lambda: [noisy("one", 0.3, calls=calls), noisy("two", 0.6, seed=1, calls=calls)]  # noqa: E731
    whole = run(llama(), ids(), made(), reading=OnePass(), batch_size=2)

    class Stopped(Exception):
        pass

    def stop(done: int, total: int, said: str) -> None:
        if done == 8:  # the second arm's first batch and one arm of the second are on the disk
            raise Stopped

    with pytest.raises(Stopped):
        run(llama(), ids(), made(), reading=OnePass(), batch_size=2, out=tmp_path, progress=stop)
    with (tmp_path / "scores.jsonl").open("a") as lines:  # a kill in the middle of a line
        lines.write('{"start": 2, "stop": 4, "arm": "tw')
    calls.clear()
    resumed = run(llama(), ids(), made(), reading=OnePass(), batch_size=2, out=tmp_path)
    np.testing.assert_array_equal(resumed.data["kl"].values, whole.data["kl"].values)
    assert ("one", slice(0, 2)) not in calls
    assert ("two", slice(4, 5)) in calls
    again = run(llama(), ids(), made(), reading=OnePass(), batch_size=2, out=tmp_path)
    np.testing.assert_array_equal(again.data["nats"].values, whole.data["nats"].values)
    with pytest.raises(InputError, match="another trial"):
        run(llama(), ids(seed=2), made(), reading=OnePass(), batch_size=2, out=tmp_path)


def test_a_file_holds_scores_and_no_words(tmp_path: Path) -> None:
    trial = run(llama(), ids(), [beaten(0.2, 0.5)], reading=OnePass(), controls=1, about={"kind": "planted"})
    trial.save(tmp_path / "trial.nc")
    read = load(tmp_path / "trial.nc")
    assert read.verdict == trial.verdict
    assert json.loads(json.dumps(read.to_json())) == json.loads(json.dumps(trial.to_json()))
    assert "verdict" not in read.record
    with pytest.raises(InputError, match="cannot read"):
        load(tmp_path / "nothing.nc")


def test_calibration_texts_are_never_scored_unless_asked() -> None:
    model, texts = llama(), ids(20)
    fits, chooses = split(model, texts, "fits"), split(model, texts, "chooses")
    for each, first in ((fits, 10), (chooses, 8)):
        assert each.calibration is not None
        assert each.calibration.count == first
        assert each.scored.count == 20 - first
        assert each.scored.ids is not None
        assert torch.equal(each.scored.ids, texts[first:])
        assert each.record == {"texts": first, "sha256": each.calibration.digest(), "in_sample": False}
    within = split(model, texts, "fits", in_sample=True)
    trial = run(model, within.scored, [noisy("arm", 0.1)], reading=OnePass(), calibrated_on=within.record)
    assert "calibrated on" in trial.verdict
    own = split(model, texts, "fits", calibrate_on=texts)
    assert own.record is not None
    assert own.record["in_sample"]
    with pytest.raises(InputError, match="give"):
        split(model, ids(3), "chooses")


@pytest.mark.parametrize(
    ("arms", "reading", "said"),
    [
        ([], OnePass(), "at least one arm"),
        ([noisy("full", 0.1)], OnePass(), "unchanged model"),
        ([noisy("a", 0.1), noisy("a", 0.2)], OnePass(), "two arms|every arm needs"),
        ([noisy("a", 0.1)], OnePass(99), "from_token"),
        ([noisy("a", 0.1)], ThroughCache(12), "context"),
        ([noisy("a", 0.1)], ThroughCache(4, 0), "chunk"),
        ([noisy("a", 0.1)], Written(0), "at least one token"),
    ],
)
def test_bad_input_is_one_line(arms: list[Arm], reading: Any, said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        run(llama(), ids(), arms, reading=reading)
    assert "\n" not in str(error.value)


def test_nan_is_no_result() -> None:
    with pytest.raises(InputError, match="'arm' are NaN"):
        run(llama(), ids(), [noisy("arm", float("nan"))], reading=OnePass())


def test_a_trial_shows_table_and_figure() -> None:
    trial = run(llama(), ids(), [beaten(0.2, 0.5), noisy("all", 0.5, baseline=True)], reading=OnePass(), controls=2)
    assert trial.table()["arm"].tolist() == ["full", "all", "arm"]
    assert trial.table(full=True)["role"].tolist() == ["reference", "baseline", "arm", "control", "control"]
    assert isinstance(trial, Trial)
    assert {trace.name for trace in trial.plot().data} == {"baseline", "arm", "random controls, each draw"}
    share = trial.recovered("arm")
    expected = 1 - trial.values("arm").mean() / trial.values("all").mean()
    assert share.value == pytest.approx(expected)
    assert share.low < share.value < share.high
