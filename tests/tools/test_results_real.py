"""The plan of trials on a pretrained model: commands that exist, in less than ten hours, on the same texts."""

from __future__ import annotations

import json
import re

import typer

from sinkscope.cli.app import app
from tools.pages import ROOT
from tools.results_real import FOLDER, rows


def test_every_row_is_a_command_line_and_all_fit_in_ten_hours() -> None:
    commands = typer.main.get_command(app).commands
    planned = rows()
    assert len({row.name for row in planned}) == len(planned)
    assert sum(row.hours for row in planned) < 10
    for row in planned:
        name, *arguments = row.arguments
        commands[name].make_context(name, ["nano", *arguments, "--json"])  # raises for an option that is not there


def test_stored_rows_of_one_corpus_read_the_same_texts() -> None:
    hashes: dict[tuple[str, int, int], set[str]] = {}
    for path in FOLDER.glob("*.json"):
        result = json.loads(path.read_text(encoding="utf-8"))["result"]
        if "texts_sha256" in result:
            texts = path.stem.rpartition("-")[2], result["tokens"], result["texts"]
            hashes.setdefault(texts, set()).add(result["texts_sha256"])
    assert hashes
    assert all(len(each) == 1 for each in hashes.values()), hashes


def test_no_stored_result_has_a_path_of_the_machine_that_made_it() -> None:
    stored = [*(ROOT / "results").rglob("*.json"), *(ROOT / "replication").rglob("*.json*")]
    assert len(stored) > 20
    assert [path.name for path in stored if re.search(r'"/[A-Za-z]+/', path.read_text(encoding="utf-8"))] == []
