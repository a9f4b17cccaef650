"""`sinkscope check`: the card, its files, flags and refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_card_is_printed_and_written(sinkscope, tmp_path: Path):
    done = sinkscope("check", "nano", "--only", "sink,cache", "--texts", 4, "--explain")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0].startswith("nano, weights in float32: 4 texts of 128 tokens: code")
    assert "Sink: Yes: position 0" in done.out
    assert "The first that holds is the word" in done.out
    folder = tmp_path / next((tmp_path / "sinkscope-check").iterdir())
    card = json.loads((folder / "card.json").read_text())
    assert set(card["sections"]) == {"sink", "cache"}
    assert "Report card of nano" in (folder / "figure.html").read_text()
    assert (folder / "table.csv").read_text().startswith("section,key,finding")


@pytest.mark.slow
def test_json_is_alone_on_stdout_and_compares(sinkscope, tmp_path: Path):
    first = sinkscope("check", "nano", "--only", "bos", "--texts", 4, "--json", "--out", tmp_path / "a")
    assert first.json["sections"]["bos"]["on"]["plain code"]["facts"]["tokenizer_adds"] == 1
    again = sinkscope(
        "check", "nano", "--only", "bos", "--texts", 4, "--json", "--out", "a", "--against", "a/card.json"
    )
    assert {row["difference"] for row in again.json["against"]} == {0.0}
    other = sinkscope(
        "check", "nano", "--only", "bos", "--texts", 4, "--seed", 1, "--out", "b", "--against", "a/card.json"
    )
    assert "their hashes differ" in other.error


@pytest.mark.slow
def test_a_flag_that_is_raised_is_the_exit_code(sinkscope):
    done = sinkscope("check", "nano", "--only", "cache", "--texts", 4, "--fail-on", "kv8:breaks,kv8:free")
    assert done.code == 1
    assert "found: kv8:free" in done.err
    assert sinkscope("check", "nano", "--only", "cache", "--texts", 4, "--fail-on", "kv8:breaks").code == 0


@pytest.mark.slow
def test_a_whole_card_says_beforehand_how_long_it_takes(sinkscope, tmp_path: Path):
    for full in ([], ["--full"]):
        answer = sinkscope("check", "nano", "--only", "sink", *full, "--out", str(tmp_path / str(len(full))))
        first = answer.err.splitlines()[0]
        assert first.startswith("nano: sink")
        assert bool(re.search(r"; about (\d+ s|\d+ min)", first)) == bool(full), first


def test_a_plan_loads_nothing(sinkscope, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sinkscope.cli.check.open_model", lambda *_: pytest.fail("it was loaded"))
    done = sinkscope("check", "nano", "--plan", "--full", "--json")
    assert {"sink", "bos", "cache", "int8"} <= {name for name, *_ in done.json["sections"]}
    assert done.json["seconds"] == pytest.approx(sum(seconds for *_, seconds in done.json["sections"]))
    shorter = sinkscope("check", "nano", "--plan", "--json").json
    assert len(shorter["sections"]) == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--only", "cach"), "unknown section 'cach': did you mean 'cache'?"),
        (("--skip", "sink,bos,cache"), "no section is left to run"),
        (("--fail-on", "bos-thrice"), "did you mean 'bos-twice'?"),
        (("--fail-on", "kv4:bad"), "unknown word 'bad'"),
        (("--fail-on", "costs,bos-twice", "--skip", "bos"), "flag bos-twice is raised by section bos"),
        (("--fail-on", "no-sink", "--only", "bos"), "section sink"),
        (("--fail-on", "kv44:costs"), "unknown row 'kv44': did you mean 'kv4'?"),
        (("--against", "absent.json"), "cannot read absent.json"),
        (("--against", "junk.json"), "junk.json: this is no report card"),
        (("--only", ","), "--only ',' names nothing"),
        (("--fail-on", ""), "--fail-on '' names nothing"),
        (("--text", "short.txt"), "the longest text has"),
        (("--submit", "atlas"), "the atlas takes whole cards on the texts that come along: add --full"),
        (("--submit", "atlas", "--full", "--only", "sink"), "and none of --only, --skip, --text"),
        (("--submit", "atlas", "--full", "--texts", "8"), "at least 24 --texts"),
        (("--submit", "atlas", "--full", "--text", __file__), "and none of --only, --skip, --text"),
        (("--submit", "atlas", "--full", "--controls", "0"), "1 of --controls"),
        (("--submit", "junk.json", "--full", "--plan"), "cannot write to junk.json: Not a directory"),
    ],
)
def test_bad_input_is_one_line(sinkscope, tmp_path: Path, arguments: tuple[str, ...], said: str):
    (tmp_path / "junk.json").write_text("{}")
    (tmp_path / "short.txt").write_text("short")
    assert said in sinkscope("check", "nano", *arguments).error
