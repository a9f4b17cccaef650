"""One model at a time, whatever its family; nothing measured twice, nothing lost, nothing fatal."""

from __future__ import annotations

import gc
import json
import shutil
import weakref
from functools import partial
from importlib import import_module

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

import sinkscope as ss
from sinkscope.data import build_inputs
from sinkscope.errors import InputError
from sinkscope.files import sha256
from sinkscope.measurements import Measurement
from sinkscope.model import load
from sinkscope.survey import Progress, Survey, SurveySpec, running, survey
from sinkscope.survey.subjects import identity, subjects
from sinkscope.training import locked
from tests.survey.conftest import BUILDERS, FEW

NAMES = list(BUILDERS)


@pytest.fixture(scope="module")
def five(zoo, tmp_path_factory):
    """The survey over all five families. Shared: leave it as it is."""
    spec = SurveySpec(models=[{"model": str(zoo / name), "label": name} for name in NAMES], **FEW)
    return survey(spec, tmp_path_factory.mktemp("five"))


def of(found: Survey, label: str, kind: str = "random"):
    [row] = [row for row in found.rows if (row.label, row.input) == (label, kind)]
    return row


def test_every_family_is_a_row(five):
    assert [(row.label, row.input) for row in five.rows] == [(name, kind) for name in NAMES for kind in FEW["inputs"]]
    for row in five.rows:
        assert row.status == "measured", row.reason
        assert row.low <= row.sink_rate <= row.high
        assert row.first == {"random": "a random token", "repeated": "the token that is repeated"}[row.input]
        assert len(row.by_layer) == row.layers
        assert row.samples == 3
        assert row.tokens == 16


def test_a_row_is_what_measure_finds(five, zoo):
    model = load(zoo / "lab")
    ids = build_inputs("random", tokenizer=None, vocab_size=97, tokens=16, samples=3, seed=0).input_ids
    direct, row = ss.measure(model, ids), of(five, "lab")
    assert row.sink_rate == pytest.approx(direct.sink_rate(position=0))
    assert row.hidden_norm_ratio == pytest.approx(float(direct.hidden_norm_ratio().max()), rel=1e-5)
    assert row.value_norm_ratio == pytest.approx(float(direct.value_norm_ratio().min()), rel=1e-5)
    assert row.parameters == sum(weight.numel() for weight in model.parameters())
    stored = Measurement.load(five.folder / row.results / "measurement.nc")
    assert torch.equal(
        torch.tensor(stored.data["attention_received"].values), torch.tensor(direct.data["attention_received"].values)
    )


def test_only_learned_sinks_have_a_slot_mass(five):
    assert 0 < of(five, "sinks").slot_mass < 1
    assert of(five, "lab").slot_mass is None


def test_a_hybrid_counts_its_attention_layers_alone(five):
    row = of(five, "hybrid")
    assert row.layers == 2
    assert [(layer.layer, layer.depth) for layer in row.by_layer] == [(1, pytest.approx(1 / 3)), (3, 1.0)]


def test_an_encoder_says_so(five):
    assert {layer.stack for layer in of(five, "encoder").by_layer} == {"encoder"}


def test_the_strongest_position_of_repeated_tokens_is_not_a_late_one(five):
    assert of(five, "lab", "repeated").strongest_position < 8
    assert of(five, "lab", "repeated").hidden_norm_ratio == pytest.approx(1, abs=1e-4)


def test_files_hold_the_rows(five):
    assert {path.name for path in five.folder.iterdir()} >= {"survey.json", "table.csv", "table.md", "results"}
    assert Survey.load(five.folder).rows == five.rows
    assert five.table()["label"].tolist() == [row.label for row in five.rows]
    assert five.wide().columns.tolist() == ["model", "parameters", "random", "repeated"]
    stored = json.loads((five.folder / of(five, "lab").results / "row.json").read_text())
    assert stored["record"]["versions"]["torch"] == torch.__version__
    assert stored["settings"]["kind"] == "random"


def test_the_second_time_nothing_is_loaded(run, zoo, loads):
    first = run(zoo / "lab", zoo / "sinks")
    assert loads == ["lab", "sinks"]
    assert run(zoo / "lab", zoo / "sinks") == first
    assert loads == ["lab", "sinks"]


@pytest.mark.slow
def test_a_copy_under_another_name_is_the_same_model(run, zoo, loads, tmp_path):
    shutil.copytree(zoo / "lab", tmp_path / "copy")
    first, again = run(zoo / "lab"), run({"model": str(tmp_path / "copy"), "label": "renamed"})
    assert loads == ["lab"]
    assert again.rows[0].label == "renamed"
    assert again.rows[0].sink_rate == first.rows[0].sink_rate


@pytest.mark.slow
def test_changed_weights_are_measured_again(run, zoo, loads, tmp_path):
    shutil.copytree(zoo / "lab", tmp_path / "model")
    first = run(tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    save_file({name: 2 * value for name, value in load_file(weights).items()}, weights, metadata={"format": "pt"})
    second = run(tmp_path / "model")
    assert len(loads) == 2
    assert second.rows[0].results != first.rows[0].results


@pytest.mark.parametrize(
    "setting",
    [
        {"tokens": 12},
        *(pytest.param(x, marks=pytest.mark.slow) for x in ({"samples": 2}, {"seed": 1}, {"dtype": "bfloat16"})),
    ],
)
def test_settings_that_decide_numbers_are_measured_again(run, zoo, loads, setting):
    run(zoo / "lab")
    run(zoo / "lab", **setting)
    assert len(loads) == 2


def test_settings_that_decide_no_number_are_not(run, zoo, loads):
    first, second = run(zoo / "lab"), run(zoo / "lab", batch_size=3, device="cpu", inputs=["repeated", "random"])
    assert loads == ["lab"]
    assert {row.results for row in first.rows} == {row.results for row in second.rows}


@pytest.mark.slow
def test_another_threshold_needs_no_model(run, zoo, loads):
    low = run(zoo / "lab", epsilon=0.05)
    high = run(zoo / "lab", epsilon=0.6)
    assert loads == ["lab"]
    measured = Measurement.load(low.folder / low.rows[0].results / "measurement.nc")
    assert low.rows[0].sink_rate == pytest.approx(measured.sink_rate(0.05, 0))
    assert high.rows[0].sink_rate == pytest.approx(measured.sink_rate(0.6, 0))
    assert high.rows[0].sink_rate < low.rows[0].sink_rate


def test_a_broken_model_is_a_row_with_its_reason_and_the_survey_goes_on(run, zoo, tmp_path):
    shutil.copytree(zoo / "lab", tmp_path / "broken")
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"no weights")
    (tmp_path / "empty").mkdir()
    found = run(tmp_path / "broken", tmp_path / "empty", zoo / "lab")
    assert [row.status for row in found.rows] == ["failed"] * 4 + ["measured"] * 2
    assert "cannot load model" in found.rows[0].reason
    assert "config.json is missing" in found.rows[2].reason
    assert found.failures == found.rows[:4]


def test_what_failed_is_tried_again(run, zoo, loads, tmp_path):
    place = tmp_path / "model"
    shutil.copytree(zoo / "lab", place)
    whole = (place / "model.safetensors").read_bytes()
    (place / "model.safetensors").write_bytes(b"no weights")
    assert run(place).failures
    assert len(loads) == 1, "a model that cannot be loaded is not tried for every input"
    (place / "model.safetensors").write_bytes(whole)
    assert not run(place).failures


def test_a_fault_in_the_middle_is_a_row_too(run, zoo, monkeypatch):
    def faulty(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr(running, "measure", faulty)
    assert run(zoo / "lab").rows[0].reason == "ZeroDivisionError: by nothing"


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


def test_the_table_grows_with_every_row(run, zoo, tmp_path):
    seen: list[tuple[int, int]] = []

    def watch(progress: Progress) -> None:
        stored = tmp_path / "out" / "survey.json"
        seen.append((len(progress.rows), len(Survey.load(tmp_path / "out").rows) if stored.exists() else 0))

    run(zoo / "lab", zoo / "sinks", progress=watch)
    assert all(told == stored for told, stored in seen)
    assert [told for told, _ in seen][-1] == 4


def test_a_half_written_or_damaged_result_is_measured_again(run, zoo, loads):
    first = run(zoo / "lab")
    (first.folder / first.rows[0].results / "row.json").write_text("{")
    (first.folder / "results" / ".lab.abcdefgh.unfinished").mkdir()
    assert run(zoo / "lab").rows[0].sink_rate == first.rows[0].sink_rate
    assert loads == ["lab", "lab"]
    assert len(list((first.folder / "results").iterdir())) == 2


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
        import_module("sinkscope.survey.subjects"),
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


def test_an_upgrade_measures_again(run, zoo, loads, monkeypatch):
    from sinkscope.survey import store

    first = run(zoo / "lab", inputs=["random"])
    real = store.version
    monkeypatch.setattr(store, "version", lambda name: "99.0" if name == "transformers" else real(name))
    second = run(zoo / "lab", inputs=["random"])
    assert loads == ["lab", "lab"]
    assert first.rows[0].results != second.rows[0].results


def test_text_is_known_by_its_contents_whatever_package_it_comes_from(tmp_path, monkeypatch):
    """The corpus `python` holds sources of torch, numpy and transformers: any of them may change."""
    from sinkscope.data.corpora import catalog
    from sinkscope.data.corpora.corpus import Corpus, Entry
    from sinkscope.survey.inputs import text_read

    text = {"torch/a.py": "def f(): return 1"}
    monkeypatch.setattr(
        catalog, "load_python", lambda: Corpus("python", tuple(Entry(name, partial(text.get, name)) for name in text))
    )
    spec = SurveySpec(models=["nano"])
    before = text_read(spec)
    assert text_read(spec) == before
    text["torch/a.py"] = "def f(): return 2"
    assert text_read(spec) != before
    assert text_read(SurveySpec(models=["nano"], inputs=["random"])) == ""


@pytest.mark.parametrize("name", ["adapter_config.json", "bpe.codes", "source.spm", "preprocessor_config.json"])
def test_every_file_that_may_decide_is_part_of_a_models_identity(zoo, tmp_path, name):
    shutil.copytree(zoo / "lab", tmp_path / "model")
    subject = subjects(SurveySpec(models=[str(tmp_path / "model")]))[0]
    before = identity(subject)
    (tmp_path / "model" / "README.md").write_text("about it")
    assert identity(subject) == before
    (tmp_path / "model" / name).write_text("{}")
    assert identity(subject) != before


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
