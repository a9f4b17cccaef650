"""What a stranger's machine does to `measure`: full disks, folders that cannot be written, no home, no network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_kills import contents
from tests.victims import ROOT, no_file_above

FEW = ("--input", "random", "--samples", 2, "--tokens", 8, "--observers", "few", "--device", "cpu")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:sink rates say little on texts so short")
def test_a_disk_that_fills_at_any_file_keeps_the_old_results(sinkscope, pages, model: Path, tmp_path: Path) -> None:
    """The limit lies below some of the files in turn: tables, the netCDF file, the page."""
    command = ("measure", model, *FEW, "--out", "found")
    assert sinkscope(*command).code == 0
    before = contents(tmp_path / "found")
    for most in sorted({len(data) // 2 for data in before.values()})[:: max(1, len(before) // 4)]:
        with no_file_above(most):
            error = sinkscope(*command, "--seed", 1).error
        assert error.startswith("error: cannot write found"), most
        assert error.endswith("File too large")
        assert contents(tmp_path / "found") == before
    assert [path.name for path in tmp_path.iterdir()] == ["found"]


@pytest.mark.release
def test_a_small_disk_that_is_full(model: Path, tmp_path: Path) -> None:
    """A disk of its own, where this machine lets us make one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    small = ("unshare", "--mount", "mount", "-t", "tmpfs", "-o", "size=64k", "none", disk)
    if shutil.which("unshare") is None or subprocess.run(small, capture_output=True, check=False).returncode:
        pytest.skip("no disk of a given size can be mounted here")
    program = f"{sys.executable} -m sinkscope measure {model} {' '.join(map(str, FEW))} --out {disk}/found"
    done = subprocess.run(
        (
            "unshare",
            "--mount",
            "sh",
            "-c",
            f"{' '.join(map(str, small[2:]))}; {program}; code=$?; ls -A {disk}; exit $code",
        ),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 2, done
    assert done.stderr.splitlines()[-1] == f"error: cannot write {disk}/found: No space left on device", done.stderr
    assert done.stdout == "", "nothing is left on it"


def test_a_folder_that_cannot_be_written_is_named_before_anything_is_loaded(sinkscope, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "file" in sinkscope("measure", "no-such-model", *FEW, "--out", "file/found").error


@pytest.mark.slow
def test_without_a_home_what_needs_no_cache_works_and_the_rest_says_what_to_do(
    sinkscope, model: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pwd

    def nobody(number: int) -> object:
        raise KeyError(number)

    monkeypatch.delenv("HOME")
    monkeypatch.delenv("SINKSCOPE_CACHE")
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    with pytest.raises(RuntimeError):
        Path.home()
    few = ("--samples", 2, "--tokens", 16, "--observers", "few", "--json")
    assert sinkscope("measure", model, "--text", text, *few).code == 0
    assert "set SINKSCOPE_CACHE to a folder" in sinkscope("train", "nano", "--set", "steps=1").error


@pytest.mark.slow
def test_without_network_a_name_on_the_hub_is_refused_in_a_line(sinkscope, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' own connections fail; here nothing says beforehand that there is none."""
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # the hub's library tries five times
    assert "someone/a-model" in sinkscope("measure", "someone/a-model", *FEW).error
