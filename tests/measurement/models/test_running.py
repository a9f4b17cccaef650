"""One model at a time, nothing lost, nothing fatal."""

from __future__ import annotations

import gc
import shutil
import weakref
from importlib import import_module

import pytest
from transformers import PreTrainedModel

from sinkscope.errors import InputError
from sinkscope.files import locked, sha256
from sinkscope.measurement import Measurement, Survey, SurveyProgress
from sinkscope.measurement.models import running
from sinkscope.model import load


@pytest.mark.slow
def test_a_broken_model_is_a_row_with_its_reason_and_the_survey_goes_on(run, zoo, tmp_path):
    shutil.copytree(zoo / "lab", tmp_path / "broken")
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"no weights")
    (tmp_path / "empty").mkdir()
    found = run(tmp_path / "broken", tmp_path / "empty", zoo / "lab")
    assert [row.status for row in found.rows] == ["failed"] * 4 + ["measured"] * 2
    assert "cannot load model" in found.rows[0].reason
    assert "config.json is missing" in found.rows[2].reason
    assert found.failures == found.rows[:4]


def test_a_fault_in_the_middle_is_a_row_too(run, zoo, monkeypatch):
    def faulty(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr(running, "measure", faulty)
    assert run(zoo / "lab").rows[0].reason == "ZeroDivisionError: by nothing"


@pytest.mark.slow
def test_without_a_tokenizer_text_is_skipped_and_the_rest_measured(run, zoo, loads):
    found = run(zoo / "lab", inputs=["natural", "random"])
    assert [row.status for row in found.rows] == ["skipped", "measured"]
    assert found.rows[0].reason == "no tokenizer, which natural input needs"
    assert found.wide()["natural"].tolist() == ["no tokenizer, which natural input needs"]
    assert not found.failures
    run(zoo / "lab", inputs=["natural", "random"])
    assert loads == ["lab"], "what is skipped needs no model"


class Killed(BaseException):
    """What stands for Ctrl-C or the end of a process."""


@pytest.mark.slow
def test_an_interrupted_survey_loses_no_finished_row_and_goes_on(run, zoo, loads, monkeypatch):
    measure, calls = running.measure, []

    def deadly(*given: object, **options: object) -> Measurement:
        calls.append(given)
        if len(calls) == 4:
            raise Killed
        return measure(*given, **options)

    monkeypatch.setattr(running, "measure", deadly)
    folder = None
    with pytest.raises(Killed):
        run(zoo / "lab", zoo / "sinks")
    monkeypatch.setattr(running, "measure", measure)
    folder = run(zoo / "lab", zoo / "sinks").folder
    assert loads == ["lab", "sinks", "sinks"]
    assert len(list((folder / "results").iterdir())) == 4


@pytest.mark.slow
def test_the_table_grows_with_every_row(run, zoo, tmp_path):
    seen: list[tuple[int, int]] = []

    def watch(progress: SurveyProgress) -> None:
        stored = tmp_path / "out" / "survey.json"
        seen.append((len(progress.rows), len(Survey.load(tmp_path / "out").rows) if stored.exists() else 0))

    run(zoo / "lab", zoo / "sinks", progress=watch)
    assert all(told == stored for told, stored in seen)
    assert [told for told, _ in seen][-1] == 4


def test_two_surveys_in_one_folder_exclude_each_other(run, zoo, tmp_path):
    with locked(tmp_path / "out"), pytest.raises(InputError, match="another process is surveying into"):
        run(zoo / "lab")


@pytest.mark.slow
def test_one_model_is_in_memory_at_a_time(run, zoo, monkeypatch):
    load_model, known = running.load, []

    def watched(name: str, **options: object) -> PreTrainedModel:
        assert all(reference() is None for reference in known)
        model = load_model(name, **options)
        model.hooks_of_mine = [model]  # a cycle, as accelerate's hooks make them
        known.append(weakref.ref(model))
        return model

    monkeypatch.setattr(running, "load", watched)
    gc.disable()  # so that the survey itself has to collect
    try:
        found = run(zoo / "lab", zoo / "sinks", zoo / "hybrid")
    finally:
        gc.enable()
    assert [row.status for row in found.rows] == ["measured"] * 6
    assert len(known) == 3


@pytest.mark.slow
def test_a_device_map_places_the_model_and_changes_no_number(run, tiny_llama, loads, tmp_path):
    """Parts on disk have no weights in memory between their turns; inputs go where the first weight in memory is."""
    tiny_llama.save_pretrained(tmp_path / "model")
    plain = run(tmp_path / "model")
    shutil.rmtree(plain.folder)
    parts = {"model.embed_tokens": "disk", "model.layers.0": "cpu", "model.layers.1": "disk", "model.norm": "cpu"}
    spread = run(tmp_path / "model", device_map={**parts, "model.rotary_emb": "cpu", "lm_head": "cpu"})
    assert len(loads) == 2
    assert [row.sink_rate for row in spread.rows] == [row.sink_rate for row in plain.rows]
    assert spread.rows[0].by_layer == plain.rows[0].by_layer


@pytest.mark.slow
def test_a_hub_model_is_loaded_at_the_commit_that_identified_it(run, zoo, monkeypatch):
    """Even if its branch has moved since; under a new commit it is measured again."""
    commits, asked = ["a" * 40], []
    monkeypatch.setattr(
        import_module("sinkscope.model.hub"),
        "cached_file",
        lambda name, file, revision: f"/hub/models--some--model/snapshots/{commits[-1]}/{file}",
    )

    def from_hub(name: str, **options: object) -> PreTrainedModel:
        asked.append((name, options["revision"]))
        return load(zoo / "lab")

    monkeypatch.setattr(running, "load", from_hub)
    run({"model": "some/model", "revision": "main"})
    run({"model": "some/model", "revision": "main"})
    assert asked == [("some/model", "a" * 40)]
    commits.append("b" * 40)
    run({"model": "some/model", "revision": "main"})
    assert asked[1:] == [("some/model", "b" * 40)]


def test_a_text_that_is_not_there_is_bad_input(run, zoo, tmp_path):
    with pytest.raises(InputError, match=r"cannot read .*none\.txt"):
        run(zoo / "lab", inputs=["natural"], text=tmp_path / "none.txt")


def test_the_models_folder_is_left_as_it_was(run, zoo):
    before = {path: sha256(path) for path in (zoo / "lab").iterdir()}
    run(zoo / "lab")
    assert {path: sha256(path) for path in (zoo / "lab").iterdir()} == before


def test_tables_of_another_survey_are_gone_before_the_first_row(run, zoo, tmp_path, monkeypatch):
    run(zoo / "lab")
    (tmp_path / "out" / "survey.html").write_text("of before")

    def killed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "load", killed)
    with pytest.raises(KeyboardInterrupt):
        run(zoo / "sinks")
    left = {path.name for path in (tmp_path / "out").iterdir()}
    assert not {"survey.json", "survey.html", "table.csv", "table.md"} & left
    assert "results" in left
