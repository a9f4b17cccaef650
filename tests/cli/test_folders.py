"""A folder for everything that is measured differently, and never two measurements in one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import typer

from sinkscope.cli.app import app
from sinkscope.cli.writing import results_folder
from sinkscope.measurement import Measurement

QUICK = ("--tokens", 16, "--samples", 4, "--observers", "few")


def folders(place: Path) -> set[str]:
    return {path.name for path in place.iterdir()} if place.is_dir() else set()


def folder(command: str, arguments: list[str], words: list[str]) -> Path:
    """The default folder of a call for a model."""
    with typer.main.get_command(app).commands[command].make_context(command, list(arguments)) as context:
        return results_folder(command, None, arguments[:1], words, context)


@pytest.mark.slow
def test_what_is_measured_differently_has_a_folder_of_its_own(sinkscope, model, text, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text(text.read_text()[::-1])
    calls = [("--text", text, "--json"), ("--text", other, "--json"), ("--text", text, "--bos", "none", "--json")]
    for number, call in enumerate(calls, start=1):
        assert sinkscope("measure", model, *QUICK, *call).code == 0
        assert len(folders(tmp_path / "sinkscope-measure")) == number
    before = folders(tmp_path / "sinkscope-measure")
    assert sinkscope("measure", model, *QUICK, *calls[0], "--batch-size", 2).code == 0
    assert folders(tmp_path / "sinkscope-measure") == before


@pytest.mark.slow
def test_names_that_look_alike_are_two_models(sinkscope, model, text, tmp_path):
    for place in ("my/llama", "my-llama"):
        shutil.copytree(model, tmp_path / place)
        assert sinkscope("measure", place, "--text", text, *QUICK).code == 0
    assert len(folders(tmp_path / "sinkscope-measure")) == 2


@pytest.mark.slow
def test_a_shipped_model_at_its_defaults_has_a_plain_name(sinkscope, tmp_path):
    assert sinkscope("measure", "nano", "--input", "random", "--observers", "few", "--samples", 2, "--json").code == 0
    [name] = folders(tmp_path / "sinkscope-measure")
    assert name.startswith("nano-random-")  # the hash of --samples and --observers
    assert folder("measure", ["nano"], ["natural"]) == Path("sinkscope-measure/nano-natural")


def test_every_option_that_changes_numbers_is_in_the_name() -> None:
    there = folder("intervene", ["nano", "--position", "3"], ["suppress-bands"])
    assert there != folder("intervene", ["nano", "--position", "4"], ["suppress-bands"])
    assert there.name.startswith("nano-suppress-bands-")


def test_what_a_long_name_leaves_out_is_in_its_hash() -> None:
    long = ["m" * 58, "--samples", "4"]
    assert folder("intervene", long, ["fold-logit"]) != folder("intervene", long, ["fold-key"])
    assert folder("intervene", long, ["fold-key"]) == folder("intervene", long, ["fold-key"])
    assert len(folder("intervene", long, ["fold-key"]).name) == 67


@pytest.mark.release
def test_tables_of_before_do_not_stay_beside_new_ones(sinkscope, model, text, tmp_path):
    whole = ("--tokens", 16, "--samples", 4)
    assert sinkscope("measure", model, "--text", text, *whole, "--out", "found").code == 0
    assert "tokens.csv" in folders(tmp_path / "found")
    (tmp_path / "found" / "notes.txt").write_text("mine")
    places = tmp_path / "domains"
    places.mkdir()
    shutil.copy(text, places / "a.txt")
    assert sinkscope("measure", model, "--text", places, *QUICK, "--out", "found").code == 0
    assert folders(tmp_path / "found") == {"a.txt", "domains.csv", "domains.json", "figure.html", "notes.txt"}
    assert sinkscope("measure", model, "--text", text, *QUICK, "--out", "found").code == 0
    assert "a.txt" not in folders(tmp_path / "found")
    assert {"measurement.nc", "notes.txt"} < folders(tmp_path / "found")
    assert not {"domains.csv", "massive.csv"} & folders(tmp_path / "found")


@pytest.mark.slow
def test_tables_are_made_once(sinkscope, model, monkeypatch):
    """They take a third of the time of a short measurement."""
    made, tables = [], Measurement.tables
    monkeypatch.setattr(Measurement, "tables", lambda *given: made.append(given) or tables(*given))
    assert sinkscope("measure", model, "--input", "random", *QUICK, "--out", "found").code == 0
    assert len(made) == 1


@pytest.mark.slow
def test_a_fault_halfway_leaves_the_old_measurement(sinkscope, model, text, tmp_path, monkeypatch):
    assert sinkscope("measure", model, "--text", text, *QUICK, "--out", "found").code == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "found").iterdir()}

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sinkscope.report.page.write_page", interrupted)
    assert sinkscope("measure", model, "--text", text, "--tokens", 12, *QUICK[2:], "--out", "found").code == 130
    assert {path.name: path.read_bytes() for path in (tmp_path / "found").iterdir()} == before
    assert Measurement.load(tmp_path / "found" / "measurement.nc").record["tokens"] == 16


@pytest.mark.slow
def test_a_folder_of_another_command_is_refused(sinkscope, model, text, tmp_path):
    assert sinkscope("measure", model, "--text", text, *QUICK, "--out", "found").code == 0
    change = sinkscope("intervene", model, "--what", "hide-sink", "--text", text, "--out", "found")
    assert "found holds the results of sinkscope measure (measurement.nc): choose another folder" in change.error
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "card.json").write_text("{}")
    assert "results of sinkscope check" in sinkscope("measure", model, "--text", text, "--out", "s").error


@pytest.mark.slow
def test_tables_of_other_models_are_apart_and_reuse_results(sinkscope, model, tmp_path):
    few = ("--input", "random", "--tokens", 16, "--samples", 4, "--json")
    shutil.copytree(model, tmp_path / "one")
    shutil.copytree(model, tmp_path / "two")
    (tmp_path / "two" / "adapter_config.json").write_text('{"r": 8}')  # another model
    first = sinkscope("measure", "one", "nano", *few).json
    both = sinkscope("measure", "one", "two", *few).json
    assert first["folder"] != both["folder"]
    rows = json.loads((tmp_path / first["folder"] / "survey.json").read_text())["rows"]
    assert [row["label"] for row in rows] == ["one", "nano"]
    assert both["models"][0] == first["models"][0]  # seconds and all: copied, not measured again
    assert both["models"][1]["results"] != both["models"][0]["results"]


@pytest.mark.parametrize("kind", ["images", "audio"])
def test_images_and_text_exclude_each_other(sinkscope, model, text, kind):
    for wrong in (("--text", text), ("--input", "random"), ("--bos", "none"), ("--split", "all")):
        assert (
            f"{wrong[0]} goes without --images and --audio, which replace text"
            in sinkscope("measure", model, f"--{kind}", "x", *wrong).error
        )
    assert "--prompt goes with --images" in sinkscope("measure", model, "--prompt", "x").error
    assert "exclude each other" in sinkscope("measure", model, "--images", "x", "--audio", "x").error
