"""What a survey may say, and how it is told what it may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from sinkscope.errors import InputError
from sinkscope.measurement import SurveySpec, load_survey

WRONG = {
    "modells: [nano]": "unknown survey field 'modells': did you mean 'models'?",
    "models: [{modl: nano}]": "unknown survey field 'models.0.modl': did you mean 'models.0.model'?",
    "models: [nano]\ninputs: [naturl]": "unknown survey field 'inputs.0' 'naturl': did you mean 'natural'?",
    "models: [nano]\ninputs: naturl": "unknown survey field 'inputs.0' 'naturl': did you mean 'natural'?",
    "models: [nano]\ninputs: [random, random]": "survey field 'inputs' holds random twice",
    "models: [nano]\nepsilon: 2": "survey field 'epsilon' = 2: input should be less than 1",
    "models: [nano]\ntokens: 0": "survey field 'tokens' = 0: input should be greater than 0",
    "models: [nano]\nbos: maybe": "unknown survey field 'bos' 'maybe': choose from auto, add, double, none",
    "models: []": "survey field 'models' = []: tuple should have at least 1 item after validation, not 0",
    "tokens: 3": "survey field 'models' is missing",
    "models: [{label: x}]": "an entry of 'models' names either a model or checkpoints (a run's folder)",
    "models: [{model: nano, checkpoints: runs}]": (
        "an entry of 'models' names either a model or checkpoints (a run's folder)"
    ),
    "models: [{checkpoints: runs, revision: main}]": ("only label and chat_template go with 'checkpoints: runs'"),
    "models: [{model: nano, step: 3}]": "model 'nano': 'curve' and 'step' go together",
    "models: [nano]\ntext: a.txt\ninputs: [random]": (
        "text goes with natural and first-token input, which this survey does not have"
    ),
    "models: [nano]\ncorpus: prose\ninputs: [random]": (
        "corpus goes with natural and first-token input, which this survey does not have"
    ),
    "models: [nano]\nsplit: all\nimages: pictures": (
        "split goes with natural and first-token input, which this survey does not have"
    ),
    "models: [nano]\nwindows: packed\ninputs: [first-token]": (
        "windows goes with natural input, which this survey does not have"
    ),
    "models: [nano]\nbos: double\nimages: pictures": "survey field 'bos' goes with text, and 'images' takes its place",
    "models: [{model: nano, chat_template: true}]\ninputs: random": (
        "chat_template goes with natural input, which this survey does not have"
    ),
    "models: [nano]\ndevice: cpu\ndevice_map: auto": "survey fields 'device' and 'device_map' exclude each other",
}


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(("text", "message"), WRONG.items(), ids=WRONG)
def test_what_is_wrong_is_said_in_one_line(tmp_path, text, message):
    with pytest.raises(InputError) as caught:
        load_survey(written(tmp_path, text))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models: [", "survey .*mine.yaml is not YAML"),
        ("- nano", "holds list, expected fields and values"),
        ("models: !!python/object/apply:os.system ['true']", "is not YAML"),
    ],
)
def test_a_wrong_file_is_said_in_one_line(tmp_path, text, message):
    with pytest.raises(InputError, match=message) as caught:
        load_survey(written(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_an_absent_file(tmp_path):
    with pytest.raises(InputError, match=r"cannot read survey .*absent.yaml: No such file"):
        load_survey(tmp_path / "absent.yaml")


def test_a_whole_file_with_changes(tmp_path):
    spec = load_survey(
        written(
            tmp_path,
            """
models:
  - nano
  - {model: some/model, label: base, revision: main, pair: llama, chat_template: true}
  - checkpoints: runs/some-run
inputs: [natural, random, repeated]
tokens: 32
epsilon: 2e-1
device_map: {"": cpu}
""",
        ),
        samples=7,
        tokens=16,
    )
    assert [entry.model or entry.checkpoints for entry in spec.models] == ["nano", "some/model", "runs/some-run"]
    assert (spec.tokens, spec.samples, spec.epsilon, spec.device_map) == (16, 7, 0.2, {"": "cpu"})
    assert spec.models[1].pair == "llama"


def test_a_spec_does_not_change():
    with pytest.raises(ValueError, match="frozen"):
        SurveySpec(models=["nano"]).tokens = 3
