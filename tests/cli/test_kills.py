"""`kill -9` of measure (one model, several) and report, at file operations and at moments: nothing is lost.

`SINKSCOPE_KILLS=20` for as many kills of each. `train` and `experiment` have tests of their own, beside theirs.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sinkscope.measurement import Measurement
from tests.victims import Victims

KILLS = int(os.environ.get("SINKSCOPE_KILLS", "3"))

pytestmark = [
    pytest.mark.release,
    pytest.mark.skipif(sys.platform != "linux", reason="forks a process with torch in it"),
]

FEW = ("--tokens", 8, "--device", "cpu")


@pytest.fixture(scope="module")
def victims() -> Iterator[Victims]:
    found = Victims()
    yield found
    found.close()


def contents(folder: Path) -> dict[str, bytes]:
    """What a user sees of a folder: hidden drafts are none of it."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    shown = {path.relative_to(folder): path for path in paths}
    return {str(at): path.read_bytes() for at, path in shown.items() if not any(p.startswith(".") for p in at.parts)}


def test_measure_leaves_the_old_files_or_the_new_ones(victims: Victims, model: Path, tmp_path: Path) -> None:
    def command(seed: int) -> tuple[object, ...]:
        few = ("--samples", 2, "--observers", "few", "--input", "random", "--seed", seed)
        return ("measure", model, *FEW, *few, "--out", "found")

    states = {}
    for name, seed in (("old", 1), ("new", 2)):
        place = tmp_path / name
        place.mkdir()
        calm = victims(*command(seed), folder=place)
        assert calm.code == 0, calm.said
        states[name] = contents(place / "found")
    old, new = ({name.partition("-")[0] for name in states[name]} for name in ("old", "new"))
    assert old == new  # apart from the hash of the call in the manifest's name
    place, seen = tmp_path / "killed", set()
    shutil.copytree(tmp_path / "old", place)
    for _ in victims.kills(*command(2), folder=place, calm=calm, count=KILLS):
        found = contents(place / "found")
        names = {name for name, state in states.items() if found.items() <= state.items()}
        assert names, "a mixture, or half a file"
        seen |= names
        if found != states["old"]:  # begun to be replaced, or replaced
            shutil.rmtree(place)
            shutil.copytree(tmp_path / "old", place)
    assert "old" in seen
    last = victims(*command(2), folder=place)
    assert last.code == 0, last.said
    assert contents(place / "found") == states["new"]
    assert [path.name for path in (place / "found").iterdir() if path.name.startswith(".")] == []


def rows(folder: Path) -> list[dict[str, str]]:
    """The table without the times."""
    lines = csv.DictReader((folder / "table.csv").read_text().splitlines())
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def test_many_models_keep_what_is_finished_and_continue(victims: Victims, model: Path, tmp_path: Path) -> None:
    kinds = ("--input", "random", "--input", "repeated")
    command = ("measure", model, "nano", *kinds, *FEW, "--samples", 2, "--out", "found")
    calm_place, place = tmp_path / "calm", tmp_path / "killed"
    calm_place.mkdir()
    place.mkdir()
    calm = victims(*command, folder=calm_place)
    assert calm.code == 0, calm.said
    finished: dict[str, bytes] = {}
    for end in victims.kills(*command, folder=place, calm=calm, count=KILLS):
        found = contents(place / "found") if (place / "found").exists() else {}
        kept = {name: data for name, data in found.items() if name.startswith("results/")}
        assert finished.items() <= kept.items(), "what was finished is neither lost nor made again"
        for name in {str(Path(name).parent) for name in kept}:
            assert Measurement.load(place / "found" / name / "measurement.nc").data.sizes["sample"] == 2
            json.loads((place / "found" / name / "row.json").read_text())
        finished = kept
        if not end.killed:  # all is finished: from the beginning, for the kills that are left
            assert end.code == 0, end.said
            assert rows(place / "found") == rows(calm_place / "found")
            shutil.rmtree(place / "found")
            finished = {}
    last = victims(*command, folder=place)
    assert last.code == 0, last.said
    assert rows(place / "found") == rows(calm_place / "found")
    assert contents(place / "found").keys() == contents(calm_place / "found").keys()
    assert [path for path in place.rglob("*.unfinished") if (place / "found") in path.parents] == []


def test_report_leaves_the_old_page_or_the_new_one(victims: Victims, model: Path, tmp_path: Path) -> None:
    measured = victims("measure", model, *FEW, "--samples", 2, "--input", "random", "--out", "m", folder=tmp_path)
    assert measured.code == 0, measured.said
    stored, page = contents(tmp_path / "m"), tmp_path / "page.html"
    command = ("report", "m/measurement.nc", "--out", "page.html")
    calm = victims(*command, folder=tmp_path)
    assert calm.code == 0, calm.said
    whole = page.read_bytes()
    for _ in victims.kills(*command, folder=tmp_path, calm=calm, count=KILLS):
        assert page.read_bytes() in (whole, b"an older page")
        assert contents(tmp_path / "m") == stored
        page.write_bytes(b"an older page")
    assert victims(*command, folder=tmp_path).code == 0
    assert page.read_bytes() == whole
