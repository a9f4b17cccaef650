"""Runs as rows: read back as they were written, damage named by its line."""

from __future__ import annotations

import json
import math

import pytest

from sinkscope.errors import InputError
from sinkscope.experiments import Observed, read_rows, write_rows

RUN = Observed(
    "nano-softmax-1",
    "finished",
    1,
    {"loss": 1 / 3, "none": math.nan},
    (1, 2),
    {"validation_loss": (3.0, math.nan)},
    60.0,
    "a reason\u2028with a line end of its own",
    8,
    "2025-05-01T10:00:00+00:00",
    {"alpha": ((0.1, 0.2), (0.9, math.nan)), "key_norm": ((1.0, 2.0), (3.0, 4.0))},
    {"device": "cpu", "threads": 1},
    text="a" * 64,
)
DIVERGED = Observed("nano-relu-0", "diverged", 0, {}, (1,), {"validation_loss": (9.0,)}, reason="NaN")


@pytest.fixture
def path(tmp_path):
    write_rows(tmp_path / "runs.jsonl", {("b", 1): RUN, ("a", 0): DIVERGED})
    return tmp_path / "runs.jsonl"


def test_what_is_read_is_what_was_written(path):
    found = read_rows(path)
    assert list(found) == [("a", 0), ("b", 1)]
    assert found["a", 0].same(DIVERGED)
    again = found["b", 1]
    assert again.metrics["loss"] == pytest.approx(1 / 3, rel=1e-8)
    assert math.isnan(again["none"])
    assert again.curves["validation_loss"][0] == 3.0
    assert math.isnan(again.curves["validation_loss"][1])
    for name in ("run", "status", "seed", "seconds", "reason", "layout", "started", "host", "text", "steps"):
        assert getattr(again, name) == getattr(RUN, name), name


def test_heads_are_kept_as_they_were_last_and_their_largest_as_curves(path):
    again = read_rows(path)["b", 1]
    assert {name: len(rows) for name, rows in again.heads.items()} == {"alpha": 1, "key_norm": 1}
    assert again.heads["key_norm"] == ((3.0, 4.0),)
    for metric in ("top_head/alpha", "top_head/key_norm"):
        assert again[metric] == RUN[metric]
    for name in ("largest/alpha", "largest/key_norm"):
        assert again.curve(name) == RUN.curve(name) != ()


def test_rows_that_are_read_and_written_stay(path):
    text = path.read_text()
    write_rows(path, read_rows(path))
    assert path.read_text() == text
    assert read_rows(path)["b", 1].curve("largest/alpha") == (0.2, 0.9)


def test_a_file_that_changed_is_read_again(path):
    assert len(read_rows(path)) == 2
    write_rows(path, {("a", 0): DIVERGED})
    assert list(read_rows(path)) == [("a", 0)]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda lines: [lines[0], lines[1][:50]], "line 2: this is not a row of a run"),
        (lambda lines: [*lines, lines[0]], "line 3: seed 0 of a occurs twice"),
        (
            lambda lines: [*lines, json.dumps({**json.loads(lines[0]), "seed": 5})],
            "seed 5 of a: nano-relu-0 is there as seed 0 already",
        ),
        (lambda lines: ["[]", *lines], "line 1: this is not a row"),
        (lambda lines: [json.dumps({**json.loads(lines[0]), "seconds": "x"})], "seconds = 'x'"),
        (lambda lines: [json.dumps({**json.loads(lines[0]), "later": 1})], "a newer sinkscope made it"),
    ],
)
def test_damage_is_named_in_one_line(path, damage, words):
    path.write_text("\n".join(damage(path.read_text().split("\n")[:-1])) + "\n")
    with pytest.raises(InputError) as raised:
        read_rows(path)
    assert words in str(raised.value)
    assert path.name in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match="cannot read"):
        read_rows(tmp_path / "runs.jsonl")
