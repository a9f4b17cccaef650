from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest

from sinkscope.errors import InputError
from sinkscope.files import MANIFEST, cached_folder, is_intact


class Builder:
    """Writes two files, one in a folder, and counts how often."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, draft: Path) -> None:
        self.calls += 1
        (draft / "a").write_text("abc")
        (draft / "below").mkdir()
        (draft / "below" / "b").write_text("def")


def test_an_intact_folder_is_not_built_again(tmp_path: Path):
    build = Builder()
    folder = cached_folder(tmp_path / "cache" / "entry", build)
    assert cached_folder(folder, build) == folder
    assert build.calls == 1
    assert (folder / "below" / "b").read_text() == "def"
    cached_folder(folder, build, reuse=False)
    assert build.calls == 2


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "manifest", "empty manifest", "odd manifest"])
def test_a_damaged_folder_is_built_again(tmp_path: Path, damage: str):
    build = Builder()
    folder = cached_folder(tmp_path / "entry", build)
    file = folder / "below" / "b"
    if damage == "flip":
        file.write_text("dxf")
    elif damage == "cut":
        file.write_text("de")
    elif damage == "remove":
        file.unlink()
    else:
        (folder / MANIFEST).write_text({"manifest": "{", "empty manifest": "{}", "odd manifest": "[1]"}[damage])
    assert not is_intact(folder)
    cached_folder(folder, build)
    assert build.calls == 2
    assert file.read_text() == "def"
    assert is_intact(folder)


def test_an_error_while_building_leaves_no_entry(tmp_path: Path):
    def fails(draft: Path) -> None:
        (draft / "a").write_text("half")
        raise InputError("no more")

    with pytest.raises(InputError, match="no more"):
        cached_folder(tmp_path / "entry", fails)
    assert [path.name for path in tmp_path.iterdir() if path.name != "entry.lock"] == []
    assert is_intact(cached_folder(tmp_path / "entry", Builder()))


def test_what_a_killed_builder_left_is_removed(tmp_path: Path):
    (tmp_path / ".entry.abcd_123.unfinished" / "entry").mkdir(parents=True)
    (tmp_path / ".other.abcd_123.unfinished").mkdir()
    cached_folder(tmp_path / "entry", Builder())
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other.abcd_123.unfinished", "entry", "entry.lock"]


def test_only_one_builds_and_the_others_wait(tmp_path: Path):
    build = Builder()

    def slowly(draft: Path) -> None:
        build(draft)
        time.sleep(0.2)

    threads = [threading.Thread(target=cached_folder, args=(tmp_path / "entry", slowly)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert build.calls == 1


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        cached_folder(tmp_path / "file" / "entry", Builder())


def test_a_read_only_cache_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    build = Builder()
    folder = cached_folder(tmp_path / "entry", build)

    def refused(self: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("sinkscope.files.FileLock.acquire", refused)  # also where tests are run by root
    assert cached_folder(folder, build) == folder
    assert build.calls == 1
    (folder / "a").write_text("other")
    with pytest.raises(InputError, match=r"cannot write .*entry: Permission denied \(SINKSCOPE_CACHE sets"):
        cached_folder(folder, build)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_two_processes_build_one_entry(tmp_path: Path):
    """Both use it; what the second waits for is not built again."""

    def build(draft: Path) -> None:
        with (tmp_path / "builds").open("a") as stream:
            stream.write("one\n")
        for number in range(20):
            (draft / str(number)).write_text(str(number))
            time.sleep(0.01)

    def work() -> int:
        folder = cached_folder(tmp_path / "cache" / "entry", build)
        return 0 if is_intact(folder) and len(list(folder.iterdir())) == 21 else 1

    children = []
    for _ in range(3):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = work()
            finally:
                os._exit(code)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
    assert (tmp_path / "builds").read_text() == "one\n"


def test_the_manifest_lists_sizes_and_hashes(tmp_path: Path):
    manifest = json.loads((cached_folder(tmp_path / "entry", Builder()) / MANIFEST).read_text())
    assert sorted(manifest) == ["a", "below/b"]
    assert manifest["a"] == {
        "bytes": 3,
        "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    }
