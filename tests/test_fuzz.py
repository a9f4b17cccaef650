"""Whatever is read: it is taken, or refused in one line. Nothing else is raised, and nothing that is read is run."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub.errors import StrictDataclassError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sinkscope as ss
from sinkscope.attention import CATALOG, AttentionSpec, resolve
from sinkscope.errors import InputError
from sinkscope.experiments import Findings, Observed
from sinkscope.measurement import Measurement, SurveySpec, load_survey
from sinkscope.model import LabConfig
from sinkscope.training import Recipe, load_recipe
from tests.measurement.planted import EVIL, measured

pytestmark = pytest.mark.slow

RECIPE = {
    "name": "mine",
    "steps": 2,
    "batch_size": 2,
    "context": 16,
    "optimizer": {"name": "adamw", "lr": 1e-3},
    "schedule": {"kind": "constant", "warmup": 1},
    "attention": {"name": "softmax_scaled", "alpha": 0.5},
    "model": {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 64},
    "data": {"corpus": "python", "tokenizer": "bpe:300"},
}
SURVEY = {"models": [{"model": "nano", "label": "a"}], "inputs": ["random"], "tokens": 16, "samples": 4, "epsilon": 0.3}
CONFIG = {
    "vocab_size": 64,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "attention": "sigmoid",
    "position": "rotary",
}
RUN = Observed("nano-softmax-0", "finished", 0, {"loss": 3.0}, (1, 2), {"loss": (4.0, 3.0)}, 60.0, layout=8)
RECORD = Findings("emergence", "nano", 1, {"softmax": {0: RUN}}, {"softmax": {1: "no room"}}).to_dict()
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 1 << 40),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(["softmax", "nano", "__class__", "kind", EVIL, "../../etc", "\x00", "1e-3", "{{7*7}}", "\u202e"]),
)
JSON = st.recursive(
    SCALARS,
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=8), part, max_size=3),
    max_leaves=6,
)


def changed(value: Any, draw: Any) -> Any:
    """One place of nested data changed, added or removed."""
    value = copy.deepcopy(value)
    place = value
    for _ in range(draw(st.integers(0, 3))):
        keys = list(place) if isinstance(place, dict) else list(range(len(place))) if isinstance(place, list) else []
        inner = [key for key in keys if isinstance(place[key], dict | list) and len(place[key])]
        if not inner:
            break
        place = place[draw(st.sampled_from(inner))]
    if isinstance(place, dict):
        how = draw(st.sampled_from(["set", "add", "remove"]))
        if how == "add" or not place:
            place[draw(st.text(max_size=10))] = draw(JSON)
        elif how == "set":
            place[draw(st.sampled_from(sorted(place)))] = draw(JSON)
        else:
            place.pop(draw(st.sampled_from(sorted(place))))
    elif isinstance(place, list) and place:
        place[draw(st.integers(0, len(place) - 1))] = draw(JSON)
    return value


def taken_or_refused(read: Callable[[], Any]) -> Any:
    """What was read; None where it was refused, which takes one line."""
    said = "a reason"
    found = None
    try:
        found = read()
    except InputError as error:
        said = str(error)
    assert said, "an empty reason"
    assert len(said.splitlines()) == 1, said
    return found


@settings(max_examples=50)
@given(st.data())
def test_specs(data: Any) -> None:
    name = data.draw(st.sampled_from(sorted(CATALOG)))
    plain = changed(CATALOG[name].to_dict(), data.draw)
    found = taken_or_refused(lambda: AttentionSpec.from_dict(plain))
    if found is not None:
        assert AttentionSpec.from_dict(json.loads(json.dumps(found.to_dict()))) == found
        taken_or_refused(lambda: found.build(heads=2, kv_heads=1, head_dim=8, hidden_size=16))
    taken_or_refused(lambda: resolve(data.draw(JSON)))


@settings(max_examples=33)
@given(st.data())
def test_recipes(data: Any) -> None:
    fields = changed(RECIPE, data.draw)
    found = taken_or_refused(lambda: Recipe(**{str(name): value for name, value in fields.items()}))
    if found is not None:
        assert Recipe(**json.loads(found.model_dump_json())) == found
        assert found.hash({}) == Recipe(**json.loads(found.model_dump_json())).hash({})


@settings(max_examples=20)
@given(st.data())
def test_surveys_and_lab_configurations(data: Any) -> None:
    survey = changed(SURVEY, data.draw)
    taken_or_refused(lambda: SurveySpec(**{str(name): value for name, value in survey.items()}))
    config = changed(CONFIG, data.draw)
    with suppress(StrictDataclassError):  # transformers checks the types of a configuration's fields by itself
        taken_or_refused(lambda: LabConfig(**{str(name): value for name, value in config.items()}))


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.one_of(st.text(max_size=60), JSON.map(lambda value: yaml.safe_dump(value, allow_unicode=True))))
def test_yaml(tmp_path: Path, text: str) -> None:
    path = tmp_path / "any.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    taken_or_refused(lambda: load_survey(path))
    taken_or_refused(lambda: load_recipe(str(path)))


def test_yaml_builds_no_objects(tmp_path: Path) -> None:
    path = tmp_path / "evil.yaml"
    path.write_text(f"!!python/object/apply:os.system ['touch {tmp_path}/ran']\n")
    for read in (load_survey, lambda it: load_recipe(str(it))):
        assert taken_or_refused(lambda read=read: read(path)) is None
    assert not (tmp_path / "ran").exists()


@settings(max_examples=26)
@given(st.data())
def test_records(data: Any) -> None:
    found = taken_or_refused(lambda: Findings.from_dict(changed(RECORD, data.draw)))
    if found is not None:
        assert found.seconds >= 0 or found.seconds != found.seconds


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("saved") / "m.nc"
    measured(samples=2, positions=6).save(path)
    return path.read_bytes()


@pytest.mark.release
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of h5netcdf, where a file is damaged
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_saved_measurements(saved: bytes, tmp_path: Path, data: Any) -> None:
    """Bytes changed, or the end cut off: read as it was, as other numbers, or refused; and never a fault."""
    raw = bytearray(saved)
    if data.draw(st.booleans()):
        raw = raw[: data.draw(st.integers(0, len(raw)))]
    else:
        for _ in range(data.draw(st.integers(1, 6))):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "m.nc"
    path.write_bytes(raw)
    taken_or_refused(lambda: Measurement.load(path))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "m"
    ss.model.LabForCausalLM(LabConfig(**CONFIG)).save_pretrained(path)
    return path


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_headers_of_weights(folder: Path, tmp_path: Path, data: Any) -> None:
    place = tmp_path / "m"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(folder, place)
    weights = place / "model.safetensors"
    raw = bytearray(weights.read_bytes())
    size = int.from_bytes(raw[:8], "little")
    if data.draw(st.booleans()):
        raw[data.draw(st.integers(0, 7 + size))] = data.draw(st.integers(0, 255))
    else:
        raw = raw[: data.draw(st.integers(0, len(raw) - 1))]
    weights.write_bytes(raw)
    taken_or_refused(lambda: ss.load(place))


def test_hostile_names_and_tokens_stay_text(tmp_path: Path) -> None:
    evil = f'{EVIL}"><img src=x onerror=alert(1)></script><script>x=1</script>\u202eabca\x00b'
    m = measured()
    record = m.record
    record["model"] = evil
    record["token_text"] = dict.fromkeys(record.get("token_text", {"0": ""}), evil)
    forged = Measurement(m.data.assign_attrs(record=json.dumps(record)))
    text = ss.write_report(forged, tmp_path / "p.html").read_text("utf-8")
    body = text.split("<body", 1)[1]
    for part in (EVIL, "<img src=x", "<script>x=1"):
        assert part not in body
