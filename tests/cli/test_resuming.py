"""`intervene`, `cache` and `quantize`, interrupted: the same command goes on where it was, to the same numbers."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from sinkscope.cli import main

TEXT = ("--text", str(Path(__file__).parents[2] / "docs" / "calibration.md"))
FEW = (*TEXT, "--samples", "16", "--tokens", "24", "--batch-size", "8", "--controls", "1")
COMMANDS = {
    "intervene": ("intervene", "nano", "--what", "hide-sink", *FEW),
    "an intervention": ("intervene", "nano", "--what", "zero-massive", *FEW),
    "quantize": ("quantize", "nano", "--scheme", "w16a8-tensor", "--protect", "first:1", *FEW),
    "schemes": ("quantize", "nano", "--scheme", "w16a8-token,w16a8-tensor", "--protect", "first:1", *FEW),
    "cache": ("cache", "nano", *TEXT, "--policy", "h2o", "--samples", "8", "--tokens", "48", "--batch-size", "4"),
    "needles": ("cache", "nano-recall", "--policy", "h2o", "--samples", "8", "--batch-size", "4"),
}
IN_CI = ("intervene", "quantize")  # the others are read through the same engine
engine = importlib.import_module("sinkscope.trials.run")
append_line = engine.append_line


def written(monkeypatch: pytest.MonkeyPatch, until: int | None = None) -> list[Path]:
    """The files that get a line from now on; the process is interrupted after `until` of them."""
    lines: list[Path] = []

    def append(path: Path, value: Any) -> None:
        append_line(path, value)
        lines.append(path)
        if len(lines) == until:
            raise KeyboardInterrupt

    monkeypatch.setattr(engine, "append_line", append)
    return lines


def numbers(folder: Path) -> dict[str, Any]:
    """What the trials in a folder found, without times."""
    trials = {path.relative_to(folder): json.loads(path.read_text()) for path in folder.rglob("trial.json")}
    return {
        str(path): [{name: value for name, value in row.items() if "second" not in name} for row in trial["arms"]]
        for path, trial in trials.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in IN_CI else pytest.mark.release) for name in COMMANDS]
)
def test_an_interrupted_trial_goes_on(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    call = [*COMMANDS[name], "--out"]
    whole = written(monkeypatch)
    assert main([*call, "whole"]) == 0
    assert ("answers.jsonl" in {path.name for path in whole}) == (name == "needles")
    written(monkeypatch, until=len(whole) - 1)
    assert main([*call, "broken"]) == 130
    assert not list(Path("broken").glob("trial.*"))
    capsys.readouterr()
    rest = written(monkeypatch)
    assert main([*call, "broken"]) == 0
    assert "continues from" in capsys.readouterr().err
    assert len(rest) == 1
    assert numbers(Path("broken")) == numbers(Path("whole"))
    assert not list(Path("broken").glob("unfinished*"))
