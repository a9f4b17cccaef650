"""`sinkscope calibrate`: what it prints and writes, what it saves, and bad input."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from sinkscope.cli import main
from sinkscope.interventions import Intervention, Reweigh, kept, load
from sinkscope.interventions.reweigh import saving
from sinkscope.trials import load as load_trial
from tests.families.processors import images, saved_llava

TEXT = ["--text", str(Path(__file__).parents[2] / "docs" / "calibration.md")]
SMALL = [*TEXT, "--samples", "6", "--tokens", "24"]
FEW = [*SMALL, "--heads", "3.0,3.2", "--controls", "1"]


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A calibrated model stays so until it is released, or the process ends: here, with the test."""
    held: list[nn.Module] = []

    def keep(model: nn.Module, calibration: Intervention) -> None:
        kept_on(model, calibration)
        held.append(model)

    kept_on = saving.keep
    monkeypatch.setattr(saving, "keep", keep)
    yield
    for model in held:
        saving.release(model)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_it_chooses_reports_and_writes(capsys):
    assert main(["calibrate", "nano", "--method", "zero-tuning", "--values", "0.5,2", "--out", "there", *FEW]) == 0
    assert "held out" in capsys.readouterr().err
    names = {"trial.nc", "trial.json", "table.csv", "figure.html"}
    assert {path.name for path in Path("there").iterdir()} == names
    written = json.loads(Path("there/trial.json").read_text())
    assert written["calibration"]["option"] in ("gamma=0.5", "gamma=2")
    gains = load_trial("there/trial.nc").data["gain"].sel(option="gamma=2").values
    assert set(zip(*np.isfinite(gains).nonzero(), strict=True)) == {(3, 0), (3, 2)}
    assert written["calibrated_on"]["texts"] == written["texts"] == 3
    assert written["arms"][0]["arm"] == "full"
    assert (written["model"], written["method"]) == ("nano", "zero-tuning")
    for stored in ("there", "there/trial.nc"):
        assert main(["report", stored, "--out", "again.html"]) == 0
        assert Path("again.html").exists()


@pytest.mark.slow
def test_a_plan_takes_no_time_and_writes_nothing(capsys):
    assert main(["calibrate", "nano", "--method", "zero-tuning", "--plan", "--json", *SMALL]) == 0
    planned = json.loads(capsys.readouterr().out)["seconds"]
    assert main(["calibrate", "nano", "--method", "zero-tuning", "--plan", "--json", "--exhaustive", *SMALL]) == 0
    assert json.loads(capsys.readouterr().out)["seconds"]["choose"] > planned["choose"] > 0
    assert not list(Path().rglob("*"))


@pytest.mark.slow
def test_a_killed_one_goes_on_from_where_it_was(capsys, monkeypatch):
    from sinkscope.trials import choosing

    call = ["calibrate", "nano", "--method", "zero-tuning", "--values", "0.5,2", *FEW, "--out"]
    passes, means = [], choosing.means

    def counted(*given):
        passes.append(given)
        if len(passes) == 4:
            raise KeyboardInterrupt
        return means(*given)

    monkeypatch.setattr(choosing, "means", counted)
    assert main([*call, "there"]) == 130
    assert [path.name for path in Path("there").glob("unfinished-*/*")] == ["heads.jsonl"]
    capsys.readouterr()
    assert main([*call, "there"]) == 0
    assert "continues from" in capsys.readouterr().err
    resumed, whole = len(passes) - 4, len(passes) - 1
    first = json.loads(Path("there/trial.json").read_text())
    passes[:] = [()] * 4
    assert main([*call, "again"]) == 0
    assert len(passes) - 4 == whole
    assert resumed == whole - 3
    again = json.loads(Path("again/trial.json").read_text())
    assert (first["verdict"], first["calibration"]) == (again["verdict"], again["calibration"])
    assert not list(Path("there").glob("unfinished*"))


@pytest.mark.slow
def test_visual_sinks_of_a_model_that_reads_images(capsys):
    saved_llava(Path("llava"))
    images(Path("images"), ((30, 40),) * 4)
    call = ["calibrate", "llava", "--method", "var", "--images", "images", "--prompt", "a b c d", "--values", "0.2,0.6"]
    assert main([*call, "--out", "there", "--controls", "1"]) == 0, capsys.readouterr().err
    written = json.loads(Path("there/trial.json").read_text())
    assert written["calibration"]["heads"] == []
    assert written["calibration"]["option"] in ("p=0.2", "p=0.6")
    assert written["calibrated_on"]["texts"] == written["texts"] == 2
    capsys.readouterr()
    for more, said in (
        (["--heads", "3.0"], "chooses its heads itself"),
        (["--chat-template"], "replace text"),
    ):
        assert main([*call, *more]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.slow
def test_what_is_saved_of_a_model_that_reads_images_reads_them(capsys, released):
    saved_llava(Path("llava"))
    images(Path("images"), ((30, 40),) * 4)
    call = ["calibrate", "llava", "--method", "zero-tuning", "--values", "0.5,2", "--objective", "entropy"]
    assert main([*call, "--images", "images", "--controls", "1", "--save", "saved"]) == 0, capsys.readouterr().err
    assert isinstance(kept(load("saved")), Reweigh)
    assert main(["measure", "saved", "--images", "images", "--out", "measured"]) == 0, capsys.readouterr().err
    assert main(["measure", "saved", "--images", "images", "--plan"]) == 0, capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("method", ["act", "act-guarded", "temperature"])
def test_every_method_gives_json(capsys, method):
    assert main(["calibrate", "nano", "--method", method, "--json", *FEW]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["method"], found["model"]) == (method, "nano")


@pytest.mark.slow
def test_it_saves_the_calibrated_model(capsys, released):
    arguments = ["--method", "zero-tuning", "--values", "0.97,1.03", "--objective", "entropy", "--save", "saved", *FEW]
    assert main(["calibrate", "nano", *arguments]) == 0
    calibration = kept(load("saved"))
    assert isinstance(calibration, Reweigh)
    assert main(["measure", "saved", *TEXT, "--samples", "2", "--tokens", "12", "--out", "measured"]) == 0
    capsys.readouterr()
    assert main(["calibrate", "nano", *arguments]) == 2
    assert "it exists already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--method", "zerotuning"], "did you mean 'zero-tuning'"),
        (["--method", "zero-tuning", "--values", "a"], "expected numbers"),
        (["--method", "zero-tuning", "--values", "-1"], "factor = -1.0"),
        (["--method", "zero-tuning", "--values", "1"], "changes nothing"),
        (["--method", "zero-tuning", "--position", "99"], "positions 0 to 23"),
        (["--method", "var"], "give --images DIR"),
        (["--method", "act", "--prompt", "what"], "--prompt goes with --images"),
        (["--method", "act", "--device", "cpu", "--device-map", "auto"], "exclude each other"),
        (["--method", "act", "--position", "2"], "--position names the token of zero-tuning"),
        (["--method", "act", "--heads", "3"], "write layer.head"),
        (["--method", "act", "--heads", "9.0"], "does not exist"),
        (["--method", "act", "--values", "1.5"], "beta = 1.5"),
        (["--method", "temperature", "--values", "0"], "tau = 0"),
        (["--method", "act", "--choose-on", "5"], "2 that are held out"),
        (["--method", "act", "--objective", "los"], "los"),
        (["--method", "act", "--out", "there", "--save", "there", "--plan"], "the results go to there"),
        (["--method", "act", "--save", "sinkscope-calibrate", "--plan"], "which the model would replace"),
        (["--method", "act", "--save", f"{__file__}/there", "--plan"], "Not a directory"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(capsys, arguments, said):
    assert main(["calibrate", "nano", *SMALL, *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error
    assert not Path("sinkscope-calibrate").exists() or not list(Path("sinkscope-calibrate").rglob("*.json"))


def test_a_model_that_writes_nothing_is_refused(capsys):
    assert main(["calibrate", "nano-encoder", "--method", "act", *FEW]) == 2
    assert "next-token" in capsys.readouterr().err
