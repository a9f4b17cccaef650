"""Options of large models, on every command that loads one."""

from __future__ import annotations

import json

import pytest
import typer

from sinkscope.cli.app import app
from sinkscope.cli.options import AUTO_BATCH, RunningOptions

LOADING = ("measure", "check", "intervene", "quantize", "calibrate", "cache", "generate")
FEW = ("--input", "random", "--samples", 2, "--tokens", 12)


@pytest.mark.parametrize("command", LOADING)
def test_every_command_that_loads_a_model_has_them(command):
    said = [option for param in typer.main.get_command(app).commands[command].params for option in param.opts]
    for option in ("--device-map", "--dtype", "--revision", "--trust-remote-code"):
        assert option in said
    assert ("--batch-size" in said) == (command != "generate")


@pytest.mark.slow
def test_a_plan_loads_nothing_and_writes_nothing(sinkscope, model, tmp_path):
    found = sinkscope("measure", model, *FEW, "--plan", "--json").json
    assert found["parameters"] > 1000
    assert found["seconds"][0] < found["seconds"][1]
    assert "would take" in sinkscope("measure", model, *FEW, "--plan").out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_batch_size_of_our_choice_changes_no_number(sinkscope, model, tmp_path):
    def rates(*more):
        return sinkscope("measure", model, *FEW, "--observers", "few", "--json", *more).json["sink_rate"]

    assert rates("--batch-size", "auto") == rates("--batch-size", 1) == rates()
    assert len(list((tmp_path / "sinkscope-measure").iterdir())) == 1
    assert "is neither auto nor a number of samples" in sinkscope("measure", model, *FEW, "--batch-size", "many").error
    assert "is neither auto nor a number of samples" in sinkscope("measure", model, *FEW, "--batch-size", 0).error
    assert [RunningOptions(batch_size=AUTO_BATCH).batch_of(tokens) for tokens in (12, 512, 100_000)] == [64, 16, 1]


def test_where_a_model_lies_is_said_once(sinkscope, model):
    said = sinkscope("measure", model, *FEW, "--device", "cpu", "--device-map", "auto").error
    assert "--device and --device-map exclude each other" in said


def test_code_that_comes_with_a_model_runs_only_where_it_is_trusted(sinkscope, model, tmp_path):
    import shutil

    shutil.copytree(model, tmp_path / "remote")
    config = json.loads((tmp_path / "remote" / "config.json").read_text())
    config |= {"model_type": "unheard-of", "auto_map": {"AutoConfig": "mine.Mine"}}
    (tmp_path / "remote" / "config.json").write_text(json.dumps(config))
    (tmp_path / "remote" / "mine.py").write_text("open('ran', 'w').close()\nraise ImportError('it ran')\n")
    assert "remote" in sinkscope("measure", "remote", *FEW).error
    assert not (tmp_path / "ran").exists()
    assert "it ran" in sinkscope("measure", "remote", *FEW, "--trust-remote-code").error
    assert (tmp_path / "ran").exists()


def test_a_training_s_time_here_comes_from_a_step(sinkscope, recipe):
    found = sinkscope("train", recipe, "--plan", "--json").json["here"]
    assert found["layers"] == 1
    assert 0 < found["seconds"][0] <= found["seconds"][1]
    tokens = 4 * 2 * 16
    assert found["total"][0] == pytest.approx(found["seconds"][0] * tokens / found["tokens"], rel=0.01)
