"""What llm-compressor gets of a trial of AWQ: only where leaving tokens out of its calibration was better."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import sinkscope as ss
from sinkscope.errors import InputError
from sinkscope.sinks import tokens
from sinkscope.statistics import Interval
from sinkscope.trials import Trial


def trial_of(scheme: str, protect: str = "first:1", controls: int = 1) -> Trial:
    ids = torch.randint(3, 2000, (12, 40), generator=torch.Generator().manual_seed(0))
    return ss.trials.scheme_trial(ss.load("nano"), ids, scheme, protect, controls)


@pytest.fixture(scope="module")
def trial() -> Trial:
    return trial_of("w4-awq-g16-asym")


def better(trial: Trial, one: str, other: str = "controls", score: str = "kl") -> Interval:
    """In place of a trial's difference: better than all tokens, and than leaving out random ones."""
    return Interval(-0.1, -0.2, -0.05) if other == "controls" else Interval(0.1, 0.05, 0.2)


class Rows(list):
    """What is used of a data set."""

    def map(self, function: Any) -> Rows:
        return Rows(map(function, self))

    def filter(self, function: Any) -> Rows:
        return Rows(filter(function, self))


def run_script(path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that a script defines, with modifiers that only keep their arguments."""
    for place, name in (("quantization", "QuantizationModifier"), ("transform.awq", "AWQModifier")):
        module = ModuleType(f"llmcompressor.modifiers.{place}")
        setattr(module, name, SimpleNamespace)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    names: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    return names


@pytest.mark.slow
def test_a_better_calibration_is_a_recipe_and_a_loss_mask(
    trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trial, "difference", better)
    [path] = ss.export(trial, "llm-compressor", tmp_path)
    names = run_script(path, monkeypatch)
    rows = names["masked"](Rows([{"input_ids": [5, 6, 7], "n": 1}, {"input_ids": [5]}]))
    assert rows == [{"input_ids": [5, 6, 7], "n": 1, "loss_mask": [0, 1, 1]}]  # of the other nothing is left
    awq, rounding = names["recipe"]
    assert awq.duo_scaling is False
    [head] = rounding.ignore
    paths = ("lm_head", "model.lm_head", "model.lm_heads", "model.layers.0.mlp.down_proj")
    assert [bool(re.match(head.removeprefix("re:"), path)) for path in paths] == [True, True, False, False]
    grid = {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": 16}
    assert rounding.config_groups == {"group_0": {"targets": ["Linear"], "weights": grid}}
    assert "llm-compressor@" in names["__doc__"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("beyond_all", "beyond_random", "said"),
    [(0.0, 0.1, "no better than calibrating on all tokens"), (0.1, 0.0, "no better than leaving out random ones")],
)
def test_what_is_no_better_is_not_written(
    trial: Trial,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    beyond_all: float,
    beyond_random: float,
    said: str,
) -> None:
    def difference(trial: Trial, one: str, other: str = "controls", score: str = "kl") -> Interval:
        gain = -beyond_random if other == "controls" else beyond_all
        return Interval(gain, gain - 0.05, gain + 0.05)

    monkeypatch.setattr(Trial, "difference", difference)
    with pytest.raises(InputError, match=said):
        ss.export(trial, "llm-compressor", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_what_was_scored_on_its_calibration_is_refused(trial: Trial, tmp_path: Path) -> None:
    record = trial.record
    record["calibrated_on"]["in_sample"] = True
    seen = Trial(trial.data.assign_attrs(record=json.dumps(record)))
    with pytest.raises(InputError, match="scored on the texts that it was calibrated on"):
        ss.export(seen, "llm-compressor", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "protect", "controls", "said"),
    [
        ("w4-gptq", "first:1", 1, "only AWQ reads a loss_mask, and this is a trial of w4-gptq"),
        ("w4a8-token-awq", "first:1", 1, "only AWQ reads a loss_mask"),
        ("w4-awq-g16-asym", "first:1", 0, "needs an arm that leaves tokens out"),
        ("w4-awq-g16-asym", "none", 1, "needs an arm that leaves tokens out"),
    ],
)
def test_other_trials_are_refused(scheme: str, protect: str, controls: int, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        ss.export(trial_of(scheme, protect, controls), "llm-compressor", tmp_path)


@pytest.mark.slow
def test_tokens_at_other_positions_in_each_text_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = torch.randint(3, 2000, (12, 40), generator=torch.Generator().manual_seed(0))
    ids[torch.arange(12), torch.arange(12) + 4] = 5
    trial = ss.trials.scheme_trial(ss.load("nano"), ids, "w4-awq-g16-asym", "ids:5", 1)
    monkeypatch.setattr(Trial, "difference", better)
    with pytest.raises(InputError, match="other positions in each text"):
        ss.export(trial, "llm-compressor", tmp_path)


@pytest.mark.slow
def test_more_tokens_than_a_trial_lists_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that left out only those that are listed would not be what was measured."""
    monkeypatch.setattr(tokens, "LISTED", 1)
    many = trial_of("w4-awq-g16-asym", "first:2")
    monkeypatch.setattr(Trial, "difference", better)
    with pytest.raises(InputError, match="more positions than a trial lists"):
        ss.export(many, "llm-compressor", tmp_path)


def test_a_card_is_told_what_to_run(tmp_path: Path) -> None:
    card = ss.check("nano", count=4, tokens=32, only=["sink"])
    with pytest.raises(InputError, match="needs a trial of AWQ with and without tokens"):
        ss.export(card, "llm-compressor", tmp_path)
