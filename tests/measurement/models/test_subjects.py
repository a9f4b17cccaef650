"""Which models are meant, and when two are the same."""

from __future__ import annotations

import json
import shutil

import pytest

from sinkscope.errors import InputError
from sinkscope.measurement import SurveySpec
from sinkscope.measurement.models.subjects import SurveyModel, identity, survey_models
from sinkscope.model import hub


def made(*models, **options):
    return survey_models(SurveySpec(models=list(models), inputs=["natural"], **options))


@pytest.fixture
def run_folder(tmp_path, zoo):
    """A run of ours with two checkpoints and a final model with a tokenizer, which the checkpoints lack."""
    run = tmp_path / "runs" / "tiny"
    for place in ("checkpoints/checkpoint-5", "checkpoints/checkpoint-10", "model"):
        shutil.copytree(zoo / "lab", run / place)
    (run / "model" / "tokenizer_config.json").write_text("{}")
    (run / "record.json").write_text(json.dumps({"status": "finished", "step": 12}))
    return run


def test_names_and_labels():
    found = made("nano", {"model": "nano", "chat_template": True}, {"model": "a/b", "revision": "v1", "pair": "p"})
    assert [subject.label for subject in found] == ["nano", "nano, chat", "a/b@v1"]
    assert found[2].pair == "p"


def test_two_of_one_label_are_refused():
    with pytest.raises(InputError, match="two models of the survey are called 'nano'"):
        made("nano", "nano")


def test_checkpoints_of_a_run_in_order_and_its_final_model(run_folder):
    found = made({"checkpoints": str(run_folder)})
    assert [(subject.curve, subject.step) for subject in found] == [("tiny", 5), ("tiny", 10), ("tiny", 12)]
    assert [subject.label for subject in found] == ["tiny, step 5", "tiny, step 10", "tiny, step 12"]
    final = str(run_folder / "model")
    assert [subject.tokenizer for subject in found] == [final, final, None]


def test_a_final_model_that_is_its_last_checkpoint_counts_once(run_folder):
    (run_folder / "record.json").write_text(json.dumps({"status": "finished", "step": 10}))
    assert [subject.step for subject in made({"checkpoints": str(run_folder)})] == [5, 10]


def test_checkpoints_of_any_trainer(run_folder):
    found = made({"checkpoints": str(run_folder / "checkpoints"), "label": "mine"})
    assert [(subject.label, subject.tokenizer) for subject in found] == [
        ("mine, step 5", None),
        ("mine, step 10", None),
    ]


def test_no_checkpoints(tmp_path):
    with pytest.raises(InputError, match=r"no checkpoints in '.*': expected folders checkpoint-N in it"):
        made({"checkpoints": str(tmp_path)})


def test_a_folder_is_what_decides_its_numbers(zoo, tmp_path):
    before = identity(SurveyModel(str(zoo / "lab"), "x"))
    copy = tmp_path / "copy"
    shutil.copytree(zoo / "lab", copy)
    (copy / "README.md").write_text("of no influence")
    assert identity(SurveyModel(str(copy), "y")) == before
    (copy / "tokenizer.json").write_text("{}")
    assert identity(SurveyModel(str(copy), "y")) != before
    assert before.commit is None


def test_a_saved_measurement_is_called_by_its_folder(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "measurement.nc").touch()
    for name in (tmp_path / "run", tmp_path / "run" / "measurement.nc"):
        [subject] = made(str(name))
        assert (subject.label, subject.saved) == ("run", tmp_path / "run" / "measurement.nc")


def test_a_borrowed_tokenizer_is_part_of_it(run_folder):
    checkpoint = str(run_folder / "checkpoints" / "checkpoint-5")
    borrowed = SurveyModel(checkpoint, "x", tokenizer=str(run_folder / "model"))
    assert identity(borrowed) != identity(SurveyModel(checkpoint, "x"))


def test_the_shipped_model_has_an_identity():
    assert identity(SurveyModel("nano", "x")) == identity(SurveyModel("nano", "y"))


def test_a_hub_model_is_its_commit(monkeypatch, tmp_path):
    commits = {None: "a" * 40, "v1": "b" * 40}

    def cached(name: str, file: str, revision: str | None = None) -> str:
        return f"{tmp_path}/models--some--model/snapshots/{commits[revision]}/{file}"

    monkeypatch.setattr(hub, "cached_file", cached)
    main, other = (identity(SurveyModel("some/model", "x", revision)) for revision in (None, "v1"))
    assert (main.commit, other.commit) == ("a" * 40, "b" * 40)
    assert main.digest != other.digest


def test_a_hub_model_out_of_reach():
    with pytest.raises(InputError, match="cannot load model 'some/model'"):
        identity(SurveyModel("some/model", "x"))
    with pytest.raises(InputError, match="unknown model 'nanno': did you mean 'nano'"):
        identity(SurveyModel("nanno", "x"))
