"""The plan of trials on a pretrained model: commands that exist, in less than ten hours, on the same texts."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import typer

from sinkscope.cli.app import app
from tools import results_real
from tools.pages import ROOT
from tools.results_real import FOLDER, is_there, rows


def test_every_row_is_a_command_line_and_all_fit_in_ten_hours() -> None:
    commands = typer.main.get_command(app).commands
    planned = rows()
    assert len({row.name for row in planned}) == len(planned)
    assert sum(row.hours for row in planned) < 10
    for row in planned:
        name, *arguments = row.arguments
        commands[name].make_context(name, ["nano", *arguments, "--json"])  # raises for an option that is not there


def test_stored_rows_of_one_corpus_read_the_same_texts() -> None:
    hashes: dict[tuple[str, int, int, bool, bool], set[str]] = {}
    for path in FOLDER.glob("*.json"):
        result = json.loads(path.read_text(encoding="utf-8"))["result"]
        if "texts_sha256" in result:
            # What chooses tokens takes a quarter more texts beside those that it scores, and what fits ranges as many
            # again, so the scored ones are others.
            beside = bool(result.get("fits")), result.get("calibrated_on") is not None
            texts = path.stem.rpartition("-")[2], result["tokens"], result["texts"], *beside
            hashes.setdefault(texts, set()).add(result["texts_sha256"])
    assert hashes
    assert all(len(each) == 1 for each in hashes.values()), hashes


def test_no_stored_result_has_a_path_of_the_machine_that_made_it() -> None:
    stored = [*(ROOT / "results").rglob("*.json"), *(ROOT / "replication").rglob("*.json*")]
    assert len(stored) > 20
    assert [path.name for path in stored if re.search(r'"/[A-Za-z]+/', path.read_text(encoding="utf-8"))] == []


def test_a_stored_result_is_that_of_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the file of the model is called, and however many texts were read at once."""
    monkeypatch.setattr(results_real, "FOLDER", tmp_path)
    row = next(row for row in rows() if "--batch-size" in row.arguments)
    assert not is_there(row)
    for arguments, there in (
        (row.arguments, True),
        ([*row.arguments[:-1], "8"], True),
        ([*row.arguments, "--protect", "first:4"], False),
    ):
        stored = {"command": shlex.join(["sinkscope", arguments[0], "a name.gguf", *arguments[1:]])}
        (tmp_path / f"{row.name}.json").write_text(json.dumps(stored))
        assert is_there(row) == there
