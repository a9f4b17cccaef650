from __future__ import annotations

import json
from pathlib import Path

import pytest

from sinkscope.errors import InputError
from sinkscope.training.run.log import append_row, cut, json_numbers, read_rows


def test_rows_come_back(tmp_path: Path) -> None:
    rows = [{"step": 1, "loss": 2.5}, {"step": 2, "loss": 2.0, "sink/position_0": 12.5}]
    for row in rows:
        append_row(tmp_path / "log.jsonl", row)
    assert read_rows(tmp_path / "log.jsonl") == rows


def test_no_log_has_no_rows(tmp_path: Path) -> None:
    assert read_rows(tmp_path / "log.jsonl") == []


def test_a_number_that_json_lacks_is_null(tmp_path: Path) -> None:
    append_row(tmp_path / "log.jsonl", json_numbers({"step": 1, "a": float("nan"), "b": float("inf")}))
    assert json.loads((tmp_path / "log.jsonl").read_text()) == {"step": 1, "a": None, "b": None}


def test_a_torn_last_line_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"step": 1}\n{"step": 2, "lo')
    assert read_rows(tmp_path / "log.jsonl") == [{"step": 1}]


@pytest.mark.parametrize("line", ['{"step": 1', "[1]", '{"loss": 2}', '{"step": "one"}'])
def test_a_damaged_line_within_is_an_error(tmp_path: Path, line: str) -> None:
    (tmp_path / "log.jsonl").write_text(f'{line}\n{{"step": 2}}\n')
    with pytest.raises(InputError, match=r"log.jsonl, line 1 is not"):
        read_rows(tmp_path / "log.jsonl")


def test_cutting_back(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    for step in (0, 5, 10, 15):
        append_row(path, {"step": step})
    path.write_text(path.read_text() + '{"step": 16')
    assert [row["step"] for row in cut(path, 10)] == [0, 5, 10]
    append_row(path, {"step": 11})
    assert [row["step"] for row in read_rows(path)] == [0, 5, 10, 11]
    assert cut(path, -1) == read_rows(path) == []


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot write .*absent/log.jsonl: No such file"):
        append_row(tmp_path / "absent" / "log.jsonl", {"step": 1})
