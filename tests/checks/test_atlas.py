"""Files of the atlas: what is written validates, what was changed does not, and those that are there do."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sinkscope.checks import SECTIONS, Answered, Card, Part, Row
from sinkscope.checks.atlas import model_id, read_entries, submission, table, validate, write_submission
from sinkscope.data import corpus_digest
from sinkscope.errors import InputError
from sinkscope.statistics import Interval

MODELS = Path(__file__).parents[2] / "results" / "models"
SHA = "0" * 64
ROW = {"key": "rate", "value": 1.0, "unit": "% of heads", "n": 24}


@pytest.fixture
def card() -> Card:
    rate = Row("rate", "position 0 (<bos>)", Interval(77.0, 74.0, 79.0), "% of heads", 24, values=(77.0,) * 24)
    bits = Row("kv4", "4 bits", Interval(0.01, 0.009, 0.011), "KL a token", 24, "small", bytes=100.0, of_16=0.3)
    parts = (
        Part("sink", "Sink", {"prose": Answered("Yes.", (rate,), {"position": 0, "block": 11, "by_head": [[0]]})}, 1.0),
        Part("cache", "Cache bits", {"prose": Answered("4 bits small.", (bits,))}, 2.0),
    )
    record: dict[str, Any] = {"model": "some/model", "model_sha256": SHA, "weights": "weights in bfloat16"}
    record |= {"parameters": 135_000_000, "dtype": "bfloat16", "seconds": 3.0, "controls": 1, "seed": 0}
    prose = {"name": "prose", "says": "24 texts", "n": 24, "sha256": SHA, "corpus_sha256": corpus_digest("prose")}
    record |= {"texts": [prose], "versions": {"torch": "2"}, "revision": "abc", "gguf": {}}
    return Card(record, parts)


def test_what_is_written_is_read_and_holds_no_text(card: Card, tmp_path: Path) -> None:
    path = write_submission(card, tmp_path)
    assert path.name == "some-model.json"
    [found] = read_entries(tmp_path)
    assert found["revision"] == "abc"
    assert "<bos>" not in path.read_text()
    assert "Yes." not in path.read_text()
    assert "by_head" not in path.read_text()
    [row] = table([found]).to_dict(orient="records")
    assert row["heads with a sink, %"] == "77 (74 to 79)"
    assert row["block of the jump"] == 11
    assert row["bits the cache bears"] == 4


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("schema",), 7, "expected a card of schema 1"),
        (("texts", 0, "sha256"), "abc", "texts.0.sha256: String should match"),
        (("texts", 0, "corpus_sha256"), SHA, "its prose is not that of this version"),
        (("texts", 0, "n"), 8, "texts.0.n: Input should be greater than or equal to 24"),
        (("texts",), ["prose"], r"texts\.0: Input should be a valid dictionary"),
        (("seconds",), -4, "seconds: Input should be greater than or equal to 0"),
        (("versions",), None, "versions: Input should be a valid dictionary"),
        (("model",), 5, "model: Input should be a valid string"),
        (("parameters",), "many", "parameters: Input should be a valid integer"),
        (("sections",), [], "sections: Input should be a valid dictionary"),
        (("sections", "sink"), {"seconds": 1.0}, "sections.sink.on: Field required"),
        (("sections", "sink", "on"), {"code": {"rows": [], "facts": {}}}, "texts 'code' are none of prose"),
        (("sections", "sink", "on", "prose", "rows", 0), "a row", "rows.0: Input should be a valid dictionary"),
        (("sections", "sink", "on", "prose", "rows", 0, "value"), "70", "value: Input should be a valid number"),
        (("sections", "sink", "on", "prose", "rows", 0, "value"), float("nan"), "should be a finite number"),
        (("sections", "sink", "on", "prose", "rows", 0, "value"), 170.0, "out of bounds"),
        (("sections", "sink", "on", "prose", "rows", 0, "value"), 70.0, "not within its interval"),
        (("sections", "sink", "on", "prose", "rows", 0, "value"), 90.0, "not within its interval"),
        (("sections", "sink", "on", "prose", "rows", 0, "value"), -1.0, "out of bounds"),
        (("sections", "sink", "on", "prose", "rows", 0, "value"), None, "out of bounds"),
        (("sections", "sink", "on", "prose", "rows", 0, "n"), 1, "at least 4 texts"),
        (("sections", "sink", "on", "prose", "rows", 0, "n"), 25, "rate: n = 25, of 24 texts"),
        (("sections", "sink", "on", "prose", "rows", 0, "high"), 3000.0, "3000.0 % of heads is out of bounds"),
        (("sections", "sink", "on", "prose", "rows", 0, "high"), None, "an interval has two ends"),
        (("sections", "sink", "on", "prose", "rows"), [ROW, ROW], "row rate is there twice"),
        (("sections", "sink", "on", "prose", "facts"), {"a": {"b": "Once it was."}}, "facts.a is neither a number"),
        (("sections", "sink", "on", "prose", "facts"), {"texts": "Once. It was."}, "facts.texts is neither a number"),
        (("sections", "sink", "on", "prose", "rows"), [{"key": "x", "low": -1e300, "high": 5.0}], "None  is out of"),
        (("sections", "sink", "on", "prose", "facts"), {"a": [0] * 3000}, "facts.a has 3000 entries"),
        (("sections", "sink", "on", "prose", "facts"), {"a": [float("inf")]}, "facts.a is not finite"),
        (("flags",), ["good"], "flags.0: String should match"),
        (("texts", 0, "says"), "a" * 300, "texts.0.says: String should have at most 250"),
        (("sections", "cache", "on", "prose", "rows", 0, "word"), "great", "word: Input should be ''"),
        (("sections", "cache", "on", "prose", "rows", 0, "values"), [1.0], "values: Extra inputs are not permitted"),
    ],
)
def test_what_was_changed_is_refused_in_one_line(card: Card, place: tuple[Any, ...], value: Any, said: str) -> None:
    data = copy.deepcopy(submission(card))
    validate(data, "a.json")
    inner: Any = data
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    with pytest.raises(InputError, match=f"^a.json: .*{said}") as error:
        validate(data, "a.json")
    assert "\n" not in str(error.value)


def test_an_interval_may_reach_below_zero_and_layers_to_skip_are_facts(card: Card) -> None:
    data = submission(card)
    cache = data["sections"]["cache"]["on"]["prose"]
    cache["rows"][0] |= {"value": 0.002, "low": -0.002, "high": 0.006}
    cache["facts"] = {"skip_layers": {"vllm-fp8-skip": {"layers": [0], "whole": [0, 1], "ranked": [[0, 0.1]]}}}
    validate(data, "a.json")
    rate = data["sections"]["sink"]["on"]["prose"]["rows"][0]
    rate |= {"value": 1.0, "low": -1.0, "high": 3.0}
    with pytest.raises(InputError, match=r"-1\.0 % of heads is out of bounds"):
        validate(data, "a.json")


def test_a_long_reason_is_shortened(card: Card) -> None:
    parts = (*card.parts, Part("evict", "Eviction", {"prose": Answered(missing="because " * 100)}))
    data = submission(replace(card, parts=parts))
    validate(data, "a.json")
    assert data["sections"]["evict"]["on"]["prose"]["not_run"].startswith("because because")


def test_a_field_that_is_missing_is_named(card: Card) -> None:
    data = submission(card)
    del data["versions"]
    with pytest.raises(InputError, match=r"a\.json: versions: Field required"):
        validate(data, "a.json")


@pytest.mark.parametrize(
    ("name", "gguf", "expected"),
    [
        ("model.gguf", {"name": "Smollm2 135M", "basename": "smollm2"}, "Smollm2 135M"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", {"name": "x", "basename": "smollm2"}, "SmolLM2-135M-Instruct.Q4_1.gguf"),
        ("tiny.gguf", {}, "tiny.gguf"),
        ("some/model", {}, "some/model"),
    ],
)
def test_a_file_has_the_name_of_its_model(card: Card, name: str, gguf: dict[str, str], expected: str) -> None:
    assert model_id(replace(card, record={**card.record, "model": name, "gguf": gguf})) == expected


def test_the_table_says_fewest_bits_that_hold_on_both_texts(card: Card) -> None:
    data = submission(card)
    first = data["sections"]["cache"]["on"]["prose"]
    [four] = first["rows"]
    first["rows"] = [{**four, "key": f"kv{bits}"} for bits in (2, 4, 8)]
    data["sections"]["cache"]["on"]["code"] = {"rows": [{**four, "key": "kv2", "word": "costs"}], "facts": {}}
    assert table([data])["bits the cache bears"].tolist() == [4]


def test_a_file_that_is_no_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(InputError, match=r"cannot read .*a\.json"):
        read_entries(tmp_path)


def test_every_file_of_the_atlas_validates() -> None:
    found = read_entries(MODELS)
    assert {data["model"] for data in found} >= {"nano"}
    assert len(table(found)) == len(found) == len(list(MODELS.glob("*.json")))
    assert all(json.dumps(data, allow_nan=False) for data in found)
    for name, part in ((name, part) for data in found for name, part in data["sections"].items()):
        keys = [row["key"] for answer in part["on"].values() for row in answer["rows"]]
        assert [key for key in keys if not SECTIONS[name].has(key)] == []
