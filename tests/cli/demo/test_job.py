"""The whole demonstration on a recipe of seconds: real child processes, real measurements, a real page."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sinkscope.cli.demo import job
from sinkscope.cli.demo.children import ChildFailed
from sinkscope.cli.demo.job import input_table, measure_model, run, stored_runs
from sinkscope.cli.demo.pretrained import Unavailable
from sinkscope.measurement import Measurement
from sinkscope.training import load_recipe, train


@pytest.fixture(scope="session")
def shipped(tmp_path_factory, recipe):
    """A finished run in the place of the shipped model."""
    return train(load_recipe(recipe), out=tmp_path_factory.mktemp("shipped"), progress=False).path


@pytest.mark.slow
def test_the_look_measures_every_input_and_stores_it(tmp_path, shipped):
    look = measure_model(shipped, {"random": "random tokens", "repeated": "repeated token"}, tmp_path)
    assert list(look) == ["random tokens", "repeated token"]
    assert Measurement.load(tmp_path / "random.nc").data["attention_received"].sizes["position"] == 64
    table = input_table(look)
    assert list(table["input"]) == list(look)
    assert table["sink_rate"].iloc[1] == 0.0
    assert (table["low"] <= table["sink_rate"]).all()


@pytest.mark.release
def test_from_the_report_card_to_the_page(plan, shipped, capsys):
    closing = run(replace(plan, model=str(shipped)))
    assert list(closing.runs) == ["softmax", "sigmoid"]
    assert [ending.step for ending in closing.runs.values()] == [6, 6]
    assert all(ending.sink_rate is not None for ending in closing.runs.values())
    assert closing.answers
    page = (plan.out / "report.html").read_text()
    for title in ("The sink over training", "Attention received", "What the words mean"):
        assert title in page
    shown = capsys.readouterr()
    assert "softmax (live) reached" in shown.out
    assert "report.html" in shown.out
    assert "softmax: step 6/6" in shown.err
    json.dumps(closing.to_dict(), allow_nan=False)

    models = [plan.out / "runs" / name for name in (plan.out / "runs").iterdir()]
    before = {path: (path / "model" / "model.safetensors").stat().st_mtime_ns for path in models}
    again = run(replace(plan, model=str(shipped)))
    assert again.runs == closing.runs
    assert before == {path: (path / "model" / "model.safetensors").stat().st_mtime_ns for path in models}


@pytest.mark.release
def test_the_quick_one_stops_at_its_limit_and_says_so(plan, shipped, capsys):
    changes = ("steps=1000000", "eval_every=50")
    endless = replace(plan, attentions=("softmax",), model=str(shipped), seconds=30.0, changes=changes, card=False)
    closing = run(endless)
    assert closing.quick
    assert 0 < closing.runs["softmax"].step < 1_000_000
    assert list(closing.inputs) == ["natural text", "random tokens", "repeated token"]
    assert f"by step {closing.runs['softmax'].step:,}" in capsys.readouterr().out
    page = (plan.out / "report.html").read_text()
    assert "The sink on different inputs" in page
    for each in stored_runs():
        assert f"{each.label.partition(' ')[0]} (stored, mean of {len(each.runs)})" in page


def test_without_the_pretrained_model_the_shipped_one_is_checked(plan, monkeypatch, capsys):
    def refuse(*args, **kwargs):
        raise Unavailable("no network")

    monkeypatch.setattr(job, "pretrained", refuse)
    assert job._pretrained(plan) == ("nano", "nano")
    assert "no network" in capsys.readouterr().err


def test_the_stored_curves_show_a_sink_with_softmax_alone():
    softmax, sigmoid = stored_runs()
    assert min(len(each.runs) for each in (softmax, sigmoid)) >= 3
    rates = [each.mean.last("sink/position_0") for each in (softmax, sigmoid)]
    assert rates[0] > rates[1] >= 0
    assert softmax.mean.step == sigmoid.mean.step > 1000


@pytest.mark.release
def test_a_failed_training_is_a_fault_that_names_its_reason(plan, shipped):
    plan.out.mkdir()
    plan.runs.write_text("a file where the folder of runs should be")
    with pytest.raises(ChildFailed, match="cannot write"):
        run(replace(plan, model=str(shipped), attentions=("softmax",), card=False))
