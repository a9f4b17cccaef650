"""Nothing is measured twice that would give the same number, and whatever may change one is measured again."""

from __future__ import annotations

import shutil
from functools import partial
from types import SimpleNamespace

import pytest
from safetensors.torch import load_file, save_file

from sinkscope.errors import InputError
from sinkscope.measurement import Measurement, SurveySpec
from sinkscope.measurement.models.running import digest_of_text, measure_models, result_key, settled
from sinkscope.measurement.models.subjects import identity, survey_models
from sinkscope.model.hub import UNCALIBRATED


@pytest.mark.slow
def test_the_second_time_nothing_is_loaded(run, zoo, loads):
    first = run(zoo / "lab", zoo / "sinks")
    assert loads == ["lab", "sinks"]
    assert run(zoo / "lab", zoo / "sinks") == first
    assert loads == ["lab", "sinks"]


@pytest.mark.slow
def test_a_copy_under_another_name_is_the_same_model(run, zoo, loads, tmp_path):
    shutil.copytree(zoo / "lab", tmp_path / "copy")
    first = run(zoo / "lab", inputs=["random"])
    again = run({"model": str(tmp_path / "copy"), "label": "renamed"}, inputs=["random"])
    assert loads == ["lab"]
    assert again.rows[0].label == "renamed"
    assert again.rows[0].sink_rate == first.rows[0].sink_rate


@pytest.mark.slow
def test_changed_weights_are_measured_again(run, zoo, loads, tmp_path):
    shutil.copytree(zoo / "lab", tmp_path / "model")
    first = run(tmp_path / "model", inputs=["random"])
    weights = tmp_path / "model" / "model.safetensors"
    save_file({name: 2 * value for name, value in load_file(weights).items()}, weights, metadata={"format": "pt"})
    second = run(tmp_path / "model", inputs=["random"])
    assert len(loads) == 2
    assert second.rows[0].results != first.rows[0].results


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting",
    [
        {"tokens": 12},
        {"samples": 2},
        {"seed": 1},
        {"dtype": "bfloat16"},
    ],
)
def test_settings_that_decide_numbers_are_measured_again(run, zoo, loads, setting):
    run(zoo / "lab", inputs=["random"])
    run(zoo / "lab", inputs=["random"], **setting)
    assert len(loads) == 2


@pytest.mark.slow
def test_settings_that_decide_no_number_are_not(run, zoo, loads):
    first, second = run(zoo / "lab"), run(zoo / "lab", batch_size=3, device="cpu", inputs=["repeated", "random"])
    assert loads == ["lab"]
    assert {row.results for row in first.rows} == {row.results for row in second.rows}


OBSERVER = """
from dataclasses import dataclass
from sinkscope.measurement import Observer

@dataclass(frozen=True)
class Mine(Observer):
    factor: float = 2.0

    def arrays(self, layer):
        return {}

THREE = Mine(3.0)
"""


def test_an_observer_of_ones_own_counts_with_its_values_and_its_file(zoo, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "observer_of_mine.py"
    path.write_text(OBSERVER)

    def key(name: str) -> str:
        names = ("few", f"observer_of_mine:{name}")
        return result_key(SurveySpec(models=[str(zoo / "lab")], inputs=["random"], observers=names)).hash

    before = key("Mine")
    assert key("Mine") == before != key("THREE")
    path.write_text(OBSERVER.replace("return {}", "return {} if layer else {}"))
    assert key("Mine") != before


def test_a_calibrated_model_is_known_by_its_weights(tmp_path):
    """They are one level down, and what lies above them may be the same for two models."""
    for name, weights in (("one", b"1"), ("two", b"2")):
        (tmp_path / name / UNCALIBRATED).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / UNCALIBRATED / "model.safetensors").write_bytes(weights)
    one, two = (identity(survey_models(SurveySpec(models=[str(tmp_path / name)]))[0]) for name in ("one", "two"))
    assert one != two


@pytest.mark.slow
def test_another_threshold_needs_no_model(run, zoo, loads):
    low = run(zoo / "lab", epsilon=0.05)
    high = run(zoo / "lab", epsilon=0.6)
    assert loads == ["lab"]
    measured = Measurement.load(low.folder / low.rows[0].results / "measurement.nc")
    assert low.rows[0].sink_rate == pytest.approx(measured.sink_rate(0.05, 0))
    assert high.rows[0].sink_rate == pytest.approx(measured.sink_rate(0.6, 0))
    assert high.rows[0].sink_rate < low.rows[0].sink_rate


@pytest.mark.slow
def test_what_failed_is_tried_again(run, zoo, loads, tmp_path):
    place = tmp_path / "model"
    shutil.copytree(zoo / "lab", place)
    whole = (place / "model.safetensors").read_bytes()
    (place / "model.safetensors").write_bytes(b"no weights")
    assert run(place).failures
    assert len(loads) == 1, "a model that cannot be loaded is not tried for every input"
    (place / "model.safetensors").write_bytes(whole)
    assert not run(place).failures


@pytest.mark.slow
def test_a_half_written_or_damaged_result_is_measured_again(run, zoo, loads):
    first = run(zoo / "lab")
    (first.folder / first.rows[0].results / "row.json").write_text("{")
    (first.folder / "results" / ".lab.abcdefgh.unfinished").mkdir()
    assert run(zoo / "lab").rows[0].sink_rate == first.rows[0].sink_rate
    assert loads == ["lab", "lab"]
    assert len(list((first.folder / "results").iterdir())) == 2


@pytest.mark.slow
def test_an_upgrade_measures_again(run, zoo, loads, monkeypatch):
    from sinkscope.measurement.models import store

    first = run(zoo / "lab", inputs=["random"])
    real = store.version
    monkeypatch.setattr(store, "version", lambda name: "99.0" if name == "transformers" else real(name))
    second = run(zoo / "lab", inputs=["random"])
    assert loads == ["lab", "lab"]
    assert first.rows[0].results != second.rows[0].results


def test_text_is_known_by_its_contents_whatever_package_it_comes_from(tmp_path, monkeypatch):
    """The corpus `python` holds sources of torch, numpy and transformers: any of them may change."""
    from sinkscope.data.corpora import catalog
    from sinkscope.data.corpora.corpus import Corpus, CorpusEntry

    text = {"torch/a.py": "def f(): return 1"}
    monkeypatch.setattr(
        catalog,
        "load_python",
        lambda: Corpus("python", tuple(CorpusEntry(name, partial(text.get, name)) for name in text)),
    )
    spec = SurveySpec(models=["nano"], corpus="python")
    before = digest_of_text(spec)
    assert digest_of_text(spec) == before
    text["torch/a.py"] = "def f(): return 2"
    assert digest_of_text(spec) != before
    assert digest_of_text(SurveySpec(models=["nano"], inputs=["random"])) == ""


@pytest.mark.parametrize("name", ["adapter_config.json", "bpe.codes", "source.spm", "preprocessor_config.json"])
def test_every_file_that_may_decide_is_part_of_a_models_identity(zoo, tmp_path, name):
    shutil.copytree(zoo / "lab", tmp_path / "model")
    subject = survey_models(SurveySpec(models=[str(tmp_path / "model")]))[0]
    before = identity(subject)
    (tmp_path / "model" / "README.md").write_text("about it")
    assert identity(subject) == before
    (tmp_path / "model" / name).write_text("{}")
    assert identity(subject) != before


def test_a_survey_reads_what_a_measurement_reads_by_default():
    spec, subject = settled(SurveySpec(models=["nano"]), survey_models(SurveySpec(models=["nano"]))[0], None, None)
    assert (spec.corpus, subject.chat_template) == ("python", False)
    with_template = SimpleNamespace(chat_template="{{ messages }}")
    assert settled(SurveySpec(models=["nano"]), subject, None, with_template)[1].chat_template is False
    open_ = survey_models(SurveySpec(models=["nano"]))[0]
    assert settled(SurveySpec(models=["nano"]), open_, None, with_template)[1].chat_template is True


def test_a_survey_without_attention_received_is_refused_before_anything_is_measured(tmp_path):
    with pytest.raises(InputError, match="name the observer AttentionReceived too"):
        measure_models(SurveySpec(models=["nano"], observers=["HiddenNorms"]), tmp_path / "survey")
    assert not (tmp_path / "survey").exists()
