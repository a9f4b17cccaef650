from __future__ import annotations

import contextlib
import io
import json
import shutil
from pathlib import Path

import pytest

from sinkscope.cli import main
from sinkscope.cli.train import sink_of


@pytest.fixture
def tiny(recipe):
    return ("train", recipe, "--out", "runs")


@pytest.fixture(scope="module")
def once(recipe, tmp_path_factory):
    """A folder of one run, and what `--json` said of it."""
    place, out = tmp_path_factory.mktemp("once"), io.StringIO()
    with contextlib.chdir(place), contextlib.redirect_stdout(out):
        assert main(["train", str(recipe), "--out", "runs", "--json"]) == 0
    return place, out.getvalue()


@pytest.fixture
def trained(once, sinkscope, tmp_path):
    """The folder of a copy of that run, below the working directory."""
    place, said = once
    shutil.copytree(place, tmp_path, dirs_exist_ok=True)
    return Path(json.loads(said)["run"])


def test_trains_and_says_where(once):
    place, said = once
    found = json.loads(said)
    assert set(found) == {"run", "record", "last", "figure"}
    assert (place / found["run"] / "model" / "model.safetensors").is_file()
    assert "validation loss" in (place / found["figure"]).read_text()
    assert found["record"]["status"] == "finished"
    assert found["last"]["step"] == 4
    assert {"loss", "validation_loss", "sink/position_0"} <= set(found["last"])


@pytest.mark.slow
def test_a_run_ends_in_five_lines(sinkscope, tiny):
    answer = sinkscope(*tiny)
    assert answer.code == 0
    lines = answer.out.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("step 4: loss ")
    assert "validation loss" in lines[0]
    assert "run folder: runs/tiny-softmax-" in lines[3]
    assert answer.err.splitlines()[-1].startswith("next: sinkscope measure runs/tiny-softmax-")


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ({}, "not measured"),
        ({"sink/strongest": float("nan"), "sink/strongest_position": float("nan")}, "not measured"),
        ({"sink/strongest": 0.0, "sink/strongest_position": 31}, "none yet"),
        ({"sink/strongest": 62.5, "sink/strongest_position": 0}, "position 0, in 62.5 % of heads"),
    ],
)
def test_no_sink_is_called_one(last, said):
    assert said in sink_of(last)


@pytest.mark.slow
def test_set_changes_a_field_and_the_folder(sinkscope, tiny):
    found = sinkscope(*tiny, "--set", "attention=sigmoid", "--set", "steps=2", "--json").json
    assert found["run"].startswith("runs/tiny-sigmoid-")
    assert found["last"]["step"] == 2


@pytest.mark.slow
def test_options_of_an_operation_are_trained_shown_and_told_apart(sinkscope, tiny):
    options = ("--set", "attention=softmax_scaled", "--set", "attention.alpha=0.2")
    planned = sinkscope(*tiny, *options, "--plan", "--json").json
    assert planned["recipe"]["attention"] == {"name": "softmax_scaled", "alpha": 0.2}
    assert "attention.alpha" in sinkscope(*tiny, *options, "--plan").out
    found = sinkscope(*tiny, *options, "--set", "steps=2", "--json").json
    assert found["run"].startswith("runs/tiny-softmax_scaled-alpha=0.2-")
    assert found["record"]["recipe"]["attention"] == {"name": "softmax_scaled", "alpha": 0.2}
    few = ("--samples", 2, "--tokens", 16, "--observers", "few")
    assert sinkscope("measure", found["run"], *few, "--json").code == 0


@pytest.mark.slow
def test_resume_with_nothing_starts_and_with_a_finished_run_returns_it(sinkscope, tiny):
    first = sinkscope(*tiny, "--resume", "--json")
    again = sinkscope(*tiny, "--resume", "--json")
    assert (first.code, again.code) == (0, 0)
    assert first.json == again.json


def test_an_unfinished_run_needs_resume(sinkscope, tiny, trained):
    record = json.loads((trained / "record.json").read_text())
    (trained / "record.json").write_text(json.dumps(record | {"status": "running"}))
    assert "--resume" in sinkscope(*tiny).error
    assert sinkscope(*tiny, "--resume").code == 0


@pytest.mark.slow
def test_a_trained_run_can_be_measured_and_reported(sinkscope, trained, tmp_path):
    few = ("--input", "random", "--tokens", 12, "--samples", 2, "--observers", "few")
    assert sinkscope("measure", trained, *few, "--out", "m").code == 0
    answer = sinkscope("report", "runs", "m/measurement.nc", "--out", "page.html", "--json")
    assert answer.code == 0
    assert "The sink over training" in answer.json["sections"]
    assert (tmp_path / "page.html").stat().st_size > 1_000_000


@pytest.mark.slow
def test_a_plan_trains_nothing(sinkscope, tmp_path):
    answer = sinkscope("train", "nano", "--plan", "--json")
    assert answer.code == 0
    plan = answer.json
    assert plan["parameters"] == 1_303_680
    assert plan["tokens_per_step"] == 32 * 128
    assert plan["tokens"] == plan["recipe"]["steps"] * 32 * 128
    assert plan["corpus"] == "python"
    assert 20e6 < plan["memory_bytes"] < 1e9
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_plan_counts_the_mask_token(sinkscope):
    """Masked training adds one to the vocabulary: a row of the embeddings and one of the output layer."""
    masked = ("--set", "model.is_causal=false", "--set", "loss.masked.share=0.15")
    assert sinkscope("train", "nano", "--plan", "--json", *masked).json["parameters"] == 1_303_680 + 2 * 128


@pytest.mark.slow
def test_a_plan_for_people(sinkscope):
    answer = sinkscope("train", "nano", "--plan", "--set", "attention=sigmoid")
    assert "1,303,680" in answer.out
    assert "sigmoid" in answer.out


@pytest.mark.slow
def test_a_model_of_the_paper_is_planned_without_a_download(sinkscope):
    plan, parameters = sinkscope("train", "60m", "--plan", "--json").json, 136_462_080
    assert plan["parameters"] == parameters
    assert plan["memory_bytes"] == sum(plan["memory"].values()) > 16 * parameters
    assert plan["flops"] > 6 * plan["tokens"] * (parameters - 50_432 * plan["recipe"]["model"]["hidden_size"])
    assert "estimated" in sinkscope("train", "60m", "--plan").out


BAD = {
    "unknown way to share a model": (["train", "nano", "--parallel", "fdsp"], "'fsdp'"),
    "unknown way to share a model that is planned": (["train", "nano", "--parallel", "fdsp", "--plan"], "'fsdp'"),
    "sharding alone": (["train", "nano", "--parallel", "fsdp"], "start them with torchrun"),
    "unknown recipe": (["train", "nanno"], "did you mean 'nano'"),
    "unknown field": (["train", "nano", "--set", "stepps=3"], "steps"),
    "unknown field of the model": (["train", "nano", "--set", "model.hiden_size=3"], "hidden_size"),
    "unknown operation": (["train", "nano", "--set", "attention=sigmod"], "sigmoid"),
    "unknown option": (["train", "nano", "--set", "attention={name: softmax_scaled, alpah: 1}"], "mean 'alpha'"),
    "impossible option": (["train", "nano", "--set", "attention={name: softmax_power, p: 0}"], "field 'p' = 0"),
    "an option beyond the model": (
        ["train", "nano", "--set", "attention={name: k_bias_lowrank, d_a: 33}"],
        "head width, 32",
    ),
    "unknown corpus": (["train", "nano", "--set", "data.corpus=pyton"], "python"),
    "no value": (["train", "nano", "--set", "steps"], "steps"),
    "impossible value": (["train", "nano", "--set", "steps=0"], "steps"),
    "no such file": (["train", "absent.yaml"], "absent.yaml"),
    "an output folder that is a file": (["train", "nano", "--out", "a-file"], "cannot write"),
    "an output folder below a file": (["train", "nano", "--out", "a-file/runs"], "cannot write"),
}


@pytest.mark.parametrize(("arguments", "said"), BAD.values(), ids=BAD)
def test_bad_input_is_one_line_and_leaves_nothing(sinkscope, tmp_path, arguments, said):
    (tmp_path / "a-file").write_text("")
    answer = sinkscope(*arguments)
    assert said in answer.error
    assert answer.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["a-file"]


def test_a_text_shorter_than_the_window(sinkscope, tiny):
    assert "100000" in sinkscope(*tiny, "--set", "context=100000").error


def test_a_run_folder_of_another_configuration(sinkscope, tiny, trained):
    other = json.loads((trained / "recipe.json").read_text()) | {"seed": 7}
    (trained / "recipe.json").write_text(json.dumps(other))
    record = json.loads((trained / "record.json").read_text())
    (trained / "record.json").write_text(json.dumps(record | {"status": "running"}))
    assert "another configuration" in sinkscope(*tiny, "--resume").error


def test_a_loss_that_is_not_finite_stops_and_names_the_step(sinkscope, tiny, tmp_path):
    answer = sinkscope(
        *tiny, "--set", "optimizer.lr=1e30", "--set", "optimizer.clip=null", "--set", "schedule.warmup=0"
    )
    assert "step" in answer.error
    [run] = (tmp_path / "runs").iterdir()
    assert json.loads((run / "record.json").read_text())["status"] == "diverged"
