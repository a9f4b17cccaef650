"""Trials of calibrations: which texts are for what, which heads are drawn, what the loss is compared with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from torch import Tensor, nn

from sinkscope import calibration
from sinkscope.cli import main
from sinkscope.files.netcdf import write_netcdf
from sinkscope.interventions import InRows, Reweigh, Temperature
from sinkscope.report.trial_page import heads_sections
from sinkscope.trials import Option, Trial, calibration_of, calibration_trial, load, stored_choice, text_scores
from sinkscope.trials import calibration as room
from sinkscope.trials.predictions import shared_tokens
from tests.families.registry import FAMILIES

FACTORS = [Option(f"x{factor}", lambda heads, factor=factor: Reweigh(factor, (1,), heads)) for factor in (0.5, 2.0)]


def model_and_texts(rows: int = 13) -> tuple[nn.Module, Tensor]:
    ids = torch.randint(3, 90, (rows, 16), generator=torch.Generator().manual_seed(0))
    return FAMILIES["llama"].build("sdpa"), ids


def nats(model: nn.Module, ids: Tensor, change: Any) -> np.ndarray:
    return text_scores(model, ids, change).loss


def trial_of(**options: Any) -> Trial:
    model, ids = model_and_texts()
    return calibration_trial(model, ids, FACTORS, choose_on=5, controls=2, **options)


def test_what_is_chosen_on_is_not_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = model_and_texts()
    seen: dict[str, Tensor] = {}
    search, run = room.choose_heads, room.run

    def searched(model: nn.Module, inputs: Any, *rest: Any, **options: Any) -> Any:
        seen["chosen on"] = inputs["input_ids"]
        return search(model, inputs, *rest, **options)

    def ran(model: nn.Module, texts: Any, *rest: Any, **options: Any) -> Any:
        seen["scored"] = texts.ids
        return run(model, texts, *rest, **options)

    monkeypatch.setattr(room, "choose_heads", searched)
    monkeypatch.setattr(room, "run", ran)
    for choose_on, first in ((5, 5), (None, 6)):
        trial = calibration_trial(model, ids, FACTORS, choose_on=choose_on, controls=1)
        parts = [{tuple(row) for row in seen[name].tolist()} for name in ("chosen on", "scored")]
        assert (len(parts[0]), len(parts[1])) == (first, 13 - first)
        assert not parts[0] & parts[1]
        assert trial.texts == 13 - first
        assert not trial.record["calibrated_on"]["in_sample"]
        assert trial.record["calibrated_on"]["texts"] == first


def test_what_all_texts_begin_with_is_not_counted() -> None:
    """Neither where heads are chosen nor where they are scored, as the logits of the texts alone say."""
    model, ids = model_and_texts()
    trials = []
    for template in ((5, 6, 7, 8), (5, 6, 9, 8)):
        whole = torch.cat([torch.tensor(template).expand(len(ids), -1), ids], 1)
        trials.append((whole, calibration_trial(model, whole, FACTORS, choose_on=5, controls=1)))
    for whole, trial in trials:
        chosen = calibration_of(trial)
        if chosen is None:
            continue
        with chosen.applied(model), torch.no_grad():
            logs = model(whole[5:]).logits.log_softmax(-1)
        expected = -logs[:, 3:-1].gather(-1, whole[5:, 4:, None])[..., 0].mean(1)
        np.testing.assert_allclose(trial.values("chosen", "nats"), expected.numpy(), rtol=1e-5)
        with torch.no_grad():
            plain = model(whole[:5]).logits.log_softmax(-1)
        before = -plain[:, 3:-1].gather(-1, whole[:5, 4:, None])[..., 0].mean()
        assert trial.record["calibration"]["before"] == pytest.approx(float(before), rel=1e-5)
    assert any(calibration_of(trial) is not None for _, trial in trials)


def test_how_many_tokens_texts_share() -> None:
    ids = torch.tensor([[1, 2, 3, 4], [1, 2, 5, 4]])
    assert shared_tokens({"input_ids": ids}) == 2
    assert shared_tokens({"input_ids": ids, "attention_mask": torch.ones_like(ids)}) == 2
    assert shared_tokens({"input_ids": ids, "attention_mask": ids > 1}) == 0
    assert shared_tokens({"input_ids": ids, "pixel_values": torch.zeros(2, 3)}) == 0
    assert shared_tokens({"input_ids": ids[:1]}) == shared_tokens({"input_ids": ids[:1].expand(2, -1)}) == 0


def test_arms_are_what_they_are_called_and_their_loss_is_compared() -> None:
    model, ids = model_and_texts()
    trial = calibration_trial(model, ids, FACTORS, choose_on=5, controls=2)
    found = calibration_of(trial)
    assert isinstance(found, Reweigh)
    about = trial.record["calibration"]
    assert [list(head) for head in found.heads] == about["heads"]
    factor = float(about["option"].removeprefix("x"))
    for arm, change in (("chosen", found), ("all heads", Reweigh(factor, (1,)))):
        np.testing.assert_allclose(trial.values(arm, "nats"), nats(model, ids[5:], change), rtol=1e-5)
        assert len(trial.controls(arm)) == 2
        table = trial.table().set_index("arm")
        gain = (trial.values(f"controls of {arm}", "nats") - trial.values(arm, "nats")).mean()
        assert table.loc[arm, "beats_by"] == pytest.approx(gain)
    control = found.control(torch.Generator().manual_seed(0), model, {"input_ids": ids[5:]})
    assert control.positions != (1,)
    np.testing.assert_allclose(trial.values("random 1 for chosen", "nats"), nats(model, ids[5:], control), rtol=1e-5)


def test_random_heads_are_as_many_and_never_chosen_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each text has its own, whatever batch it is in, and is read as with the calibration in these heads alone."""
    drawn: dict[tuple[int, int], tuple[tuple[int, int], ...]] = {}
    plain = room.other_heads

    def other_heads(free: Any, count: int, number: int, row: int) -> tuple[tuple[int, int], ...]:
        drawn[number, row] = plain(free, count, number, row)
        return drawn[number, row]

    monkeypatch.setattr(room, "other_heads", other_heads)
    model, ids = model_and_texts()
    options = [
        Option("x9", lambda heads: Reweigh(9.0, (0,), heads)),
        Option("x.2", lambda heads: Reweigh(0.2, (0,), heads)),
    ]
    limited = {"heads": ((0, 0), (0, 1), (1, 2)), "choose_on": 5, "controls": 2}
    trial = calibration_trial(model, ids, options, **limited, batch_size=3)
    chosen = {tuple(head) for head in trial.record["calibration"]["heads"]}
    assert chosen
    assert len(drawn) == 2 * 8
    for heads in drawn.values():
        assert len(set(heads)) == len(chosen)
        assert not set(heads) & chosen
    assert len(set(drawn.values())) > 4
    factor = calibration_of(trial).gamma
    by_row = [nats(model, ids[5 + row : 6 + row], Reweigh(factor, (0,), drawn[0, row]))[0] for row in range(8)]
    np.testing.assert_allclose(trial.values("random 1 for chosen heads", "nats"), by_row, rtol=1e-5)
    whole = calibration_trial(model, ids, options, **limited, batch_size=8)
    np.testing.assert_allclose(whole.data["nats"].values, trial.data["nats"].values, rtol=1e-5)


def test_where_too_few_heads_are_left_there_is_no_such_control() -> None:
    model, ids = model_and_texts()
    shape = [(layer, head) for layer in range(2) for head in range(4)]
    notes: list[str] = []
    assert room._other_heads(model, FACTORS[0], shape[:5], notes) is None
    assert len(notes) == 1
    assert room._other_heads(model, FACTORS[0], shape[:4], notes) is not None
    hot = [Option("hot", lambda heads: Temperature(3.0, heads)), Option("cold", lambda heads: Temperature(0.7, heads))]
    trial = calibration_trial(model, ids, hot, heads=shape[:3], controls=1)
    if calibration_of(trial) is not None:
        assert "chosen" not in trial.arms
        assert trial.controls("chosen heads")


def test_each_row_has_its_own_heads() -> None:
    model, ids = model_and_texts(3)
    heads = (((0, 1),), ((1, 0), (1, 3)), ((0, 1), (1, 2)))
    for change in (Reweigh(5.0, (0,)), Temperature(2.0)):
        with InRows(change, heads).applied(model), torch.no_grad():
            found = model(ids).logits
        for row, own in enumerate(heads):
            alone = type(change)(**{**vars(change), "heads": own})
            with alone.applied(model), torch.no_grad():
                torch.testing.assert_close(found[row], model(ids[row : row + 1]).logits[0], rtol=1e-4, atol=1e-5)
        with InRows(change, heads).applied(model), pytest.raises(ValueError, match="3 rows"):
            model(ids[:2])


@pytest.mark.slow
def test_a_stored_trial_has_its_heads_and_its_calibration(tmp_path: Path) -> None:
    trial = trial_of()
    trial.save(tmp_path / "trial.nc")
    again = load(tmp_path / "trial.nc")
    assert again.verdict == trial.verdict
    assert calibration_of(again) == calibration_of(trial)
    [section] = heads_sections(again)
    shown = np.array(section.figures["heads"].data[0].z, dtype=float)
    option = trial.record["calibration"]["option"]
    gains, estimated = (trial.data[name].sel(option=option).values for name in ("gain", "estimated"))
    np.testing.assert_array_equal(shown, np.where(np.isfinite(gains), gains, estimated))
    assert main(["report", str(tmp_path / "trial.nc"), "--out", str(tmp_path / "page.html")]) == 0


@pytest.mark.parametrize("name", calibration.MOVED)
def test_old_names_are_read_and_name_their_new_home(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"sinkscope.calibration.{name} is sinkscope.{calibration.MOVED[name]}"):
        assert callable(getattr(calibration, name)) or name == "METHODS"


def test_choices_of_before_are_read(tmp_path: Path) -> None:
    """A file as it was written before calibrations were trials."""
    loss = np.array([[3.0, 3.2, 2.9, 3.1, 3.3], [2.9, 3.1, 2.7, 3.0, 3.1], [3.1, 3.2, 3.0, 3.3, 3.3]])
    data = xr.Dataset(
        dict.fromkeys(("loss", "entropy", "right"), (("arm", "text"), loss)),
        coords={"arm": ["nothing", "chosen", "all heads"], "held_out": ("text", [False, False, True, True, True])},
    )
    record = {"option": "gamma=2", "heads": [[0, 1]], "objective": "loss", "gains": {"gamma=2": [[0, 1, 0.1]]}}
    record |= {"intervention": Reweigh(2.0, (0,), ((0, 1),)).describe(), "record": {"seed": 0}}
    record["about"] = {"model": "m", "method": "zero-tuning", "input": "texts"}
    path = tmp_path / "choice.nc"
    write_netcdf(data.assign_attrs(choice=json.dumps(record)), path)
    choice, about = stored_choice(path)
    assert about["model"] == "m"
    assert (choice.heads, choice.gains) == (((0, 1),), {"gamma=2": {(0, 1): 0.1}})
    assert choice.intervention == Reweigh(2.0, (0,), ((0, 1),))
    assert choice.difference("chosen").value == pytest.approx(-0.5 / 3)
    assert choice.difference("chosen", held_out=False).value == pytest.approx(-0.1)
    assert main(["report", str(path), "--out", str(tmp_path / "page.html")]) == 0


def test_a_control_that_hardly_moves_predictions_is_said_to_show_little() -> None:
    trial = trial_of()
    arm = next(arm for arm in ("chosen", "chosen heads") if arm in trial.arms and trial.controls(arm))
    control = trial.data["arm"].isin(trial.controls(arm))

    def verdict(share: float) -> str:
        """Where each control moves predictions by a share of what the arm moves them by."""
        kl = trial.data["kl"].where(~control, share * trial.data["kl"].sel(arm=arm))
        return Trial(trial.data.assign(kl=kl)).verdict

    assert "could show little" in verdict(0.09)
    assert "could show little" not in verdict(0.11)
