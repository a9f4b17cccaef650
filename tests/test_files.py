"""Files are either whole or absent."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from copy import copy
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinkscope.errors import InputError
from sinkscope.files import append_line, cache_dir, indented, replacing, sha256, sweep, write_json, write_text, writing


def names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def fill(folder: Path, text: str) -> None:
    """Make a folder that holds `text` in a file and in a folder of its own."""
    (folder / "inner").mkdir(parents=True)
    (folder / "a.txt").write_text(text)
    (folder / "inner" / "b.txt").write_text(text)


def fail_while_writing(target: Path, error: BaseException) -> None:
    """Get half of a file, or of a folder where there is one, written before the error comes."""
    with writing(target) as draft:
        if target.is_dir():
            fill(draft, "new")
        else:
            draft.write_text("new")
        raise error


class ForeignError(Exception):
    """Stands for the errors of safetensors and tokenizers, which are no OSError."""


def test_a_file_appears_whole_with_its_folders(tmp_path: Path) -> None:
    target = tmp_path / "new" / "deep" / "a.txt"
    with writing(target) as draft:
        draft.write_text("half")
        assert not target.exists()
    assert target.read_text() == "half"
    assert names(target.parent) == {"a.txt"}


@pytest.mark.parametrize("error", [ZeroDivisionError(), KeyboardInterrupt(), InputError("a reason")], ids=repr)
def test_an_error_inside_the_block_keeps_the_old_file(tmp_path: Path, error: BaseException) -> None:
    write_text(tmp_path / "a.txt", "old")
    with pytest.raises(type(error)) as raised:
        fail_while_writing(tmp_path / "a.txt", error)
    assert raised.value is error
    assert ((tmp_path / "a.txt").read_text(), names(tmp_path)) == ("old", {"a.txt"})


def test_a_folder_is_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "model"
    fill(target, "old")
    (target / "left over").touch()
    with writing(target) as draft:
        fill(draft, "new")
        assert (target / "a.txt").read_text() == "old"
    assert names(target) == {"a.txt", "inner"}
    assert (target / "inner" / "b.txt").read_text() == "new"
    assert names(tmp_path) == {"model"}


def test_an_error_inside_the_block_keeps_the_old_folder(tmp_path: Path) -> None:
    fill(tmp_path / "model", "old")
    with pytest.raises(ZeroDivisionError):
        fail_while_writing(tmp_path / "model", ZeroDivisionError())
    assert (tmp_path / "model" / "inner" / "b.txt").read_text() == "old"
    assert names(tmp_path) == {"model"}


@pytest.mark.parametrize("interruption", [OSError(errno.EIO, "Input/output error"), KeyboardInterrupt()])
def test_a_folder_set_aside_comes_back_when_the_rename_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interruption: BaseException
) -> None:
    target = tmp_path / "model"
    fill(target, "old")
    replace = os.replace

    def broken(source: Path, destination: Path) -> None:
        if Path(destination) == target and not Path(source).name.endswith(".replaced"):
            raise interruption
        replace(source, destination)

    monkeypatch.setattr(os, "replace", broken)
    expected = InputError if isinstance(interruption, OSError) else KeyboardInterrupt
    with pytest.raises(expected), writing(target) as draft:
        fill(draft, "new")
    assert (target / "a.txt").read_text() == "old"
    assert names(tmp_path) == {"model"}


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        OSError("9 requested and 5 written"),
        ForeignError("I/O error: No space left on device (os error 28)"),
    ],
    ids=["the system", "numpy", "safetensors"],
)
def test_a_full_disk_is_one_clear_line(tmp_path: Path, error: Exception) -> None:
    target = tmp_path / "a.txt"
    write_text(target, "old")
    with pytest.raises(InputError, match=rf"^cannot write {target}: [^\n]+$"):
        fail_while_writing(target, error)
    assert (target.read_text(), names(tmp_path)) == ("old", {"a.txt"})


@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("exists", [True, False])
def test_a_full_disk_is_told_of_the_folder_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: int, exists: bool
) -> None:
    """Not of a file of its draft."""
    target = tmp_path / "folder"
    if exists:
        fill(target, "old")
    before = names(tmp_path)

    def full(self: Path, *args: object, **options: object) -> None:
        raise OSError(reason, os.strerror(reason), str(self))

    for writer in (write_text, append_line):
        monkeypatch.setattr(Path, "write_text" if writer is write_text else "open", full)
        with pytest.raises(InputError) as failed, replacing(target, lambda folder: folder.iterdir()) as draft:
            writer(draft / "b.txt", "new")
        monkeypatch.undo()
        assert str(failed.value) == f"cannot write {target}: {os.strerror(reason)}"
        assert str(copy(failed.value)) == str(failed.value)  # made anew as in another process
    assert names(tmp_path) == before


def test_a_full_disk_elsewhere_keeps_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file/other"), writing(tmp_path / "a.txt"):
        write_text(tmp_path / "file" / "other", "x")


def test_a_disk_that_is_full_only_when_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text(tmp_path / "a.txt", "old")

    def fsync(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(InputError, match="No space left on device"):
        write_text(tmp_path / "a.txt", "new")
    assert (tmp_path / "a.txt").read_text() == "old"


def test_every_file_of_a_folder_is_flushed_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "model"
    flushed: list[tuple[int, bool]] = []

    def fsync(handle: int) -> None:
        flushed.append((os.fstat(handle).st_ino, target.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    with writing(target) as draft:
        fill(draft, "new")
    assert set(flushed[:-1]) == {(entry.stat().st_ino, False) for entry in [target, *target.rglob("*")]}
    assert flushed[-1] == (tmp_path.stat().st_ino, True)


def test_errors_of_something_else_keep_their_own_words(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"), writing(tmp_path / "a.txt") as draft:
        draft.write_text(Path("/nowhere/to/read").read_text())
    assert names(tmp_path) == set()


def test_a_place_below_a_regular_file_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot write .*file/a\.txt: .*file is not a folder"):
        write_text(tmp_path / "file" / "a.txt", "x")
    with pytest.raises(InputError, match=r"cannot write .*a\.txt: Not a directory"):
        write_text(tmp_path / "file" / "deep" / "a.txt", "x")


def test_a_file_does_not_replace_a_folder_nor_a_folder_a_file(tmp_path: Path) -> None:
    fill(tmp_path / "folder", "old")
    with pytest.raises(InputError, match="Is a directory"):
        write_text(tmp_path / "folder", "x")
    (tmp_path / "file").write_text("old")
    with pytest.raises(InputError, match="Not a directory"), writing(tmp_path / "file") as draft:
        fill(draft, "new")
    assert (tmp_path / "folder" / "a.txt").read_text() == (tmp_path / "file").read_text() == "old"
    assert names(tmp_path) == {"folder", "file"}


def test_a_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for name in ("pipe", "link"):
        with pytest.raises(InputError, match=rf"cannot write .*{name}: it is a device or a pipe"):
            write_text(tmp_path / name, "x")
    assert (tmp_path / "pipe").is_fifo()
    assert names(tmp_path) == {"pipe", "link"}


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    """Else the results of a folder that is kept on another disk would land on the disk of its link."""
    (tmp_path / "disk").mkdir()
    for name, fill_it in (
        ("a.txt", lambda draft: draft.write_text("new")),
        ("model", lambda draft: fill(draft, "new")),
    ):
        (tmp_path / name).symlink_to(tmp_path / "disk" / name)
        for _ in ("to nothing yet", "to the old one"):
            with writing(tmp_path / name) as draft:
                fill_it(draft)
            assert (tmp_path / name).is_symlink()
    assert (tmp_path / "disk" / "a.txt").read_text() == (tmp_path / "disk" / "model" / "a.txt").read_text() == "new"
    assert names(tmp_path / "disk") == {"a.txt", "model"}


def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_text("a.txt", "x")
    with pytest.raises(InputError, match=r"cannot write a\.txt: No such file"), writing("a.txt") as draft:
        (draft.absolute() / "missing" / "b").touch()
    assert names(tmp_path) == {"a.txt"}


def test_files_and_folders_get_ordinary_modes(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    (tmp_path / "folder").mkdir()
    write_text(tmp_path / "a.txt", "x")
    with writing(tmp_path / "model") as draft:
        draft.mkdir()
    assert (tmp_path / "a.txt").stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert (tmp_path / "model").stat().st_mode == (tmp_path / "folder").stat().st_mode


KILLED = """
import os, pathlib, signal, sys
import sinkscope.files as files
target, moment = pathlib.Path(sys.argv[1]), sys.argv[2]
replace = os.replace
def stop(): os.kill(os.getpid(), signal.SIGKILL)
def replace_then_die(source, destination): replace(source, destination); stop()
with files.writing(target) as draft:
    draft.mkdir()
    (draft / "a.txt").write_text("new")
    if moment == "while writing": stop()
    os.replace = replace_then_die  # the first rename sets the old folder aside
"""


@pytest.mark.parametrize("moment", ["while writing", "between the renames"])
@pytest.mark.parametrize("swept", [lambda root: root, lambda root: root / "run" / "model"], ids=["all", "one"])
def test_after_a_kill_a_sweep_restores_and_clears(tmp_path: Path, moment: str, swept: Callable[[Path], Path]) -> None:
    target = tmp_path / "run" / "model"
    fill(target, "old")
    killed = subprocess.run([sys.executable, "-c", KILLED, target, moment], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert target.exists() == (moment == "while writing")
    assert len(names(target.parent) - {"model"}) == 1
    sweep(swept(tmp_path))
    assert names(target.parent) == {"model"}
    assert (target / "inner" / "b.txt").read_text() == "old"


def test_a_sweep_touches_nothing_else(tmp_path: Path) -> None:
    (tmp_path / ".hidden").touch()
    fill(tmp_path / "model", "kept")
    with writing(tmp_path / "model.other") as busy:
        fill(busy, "new")
        sweep(tmp_path / "model")
        sweep(tmp_path / "absent")
    assert names(tmp_path) == {".hidden", "model", "model.other"}


def test_a_successor_that_arrived_is_not_undone(tmp_path: Path) -> None:
    fill(tmp_path / "model", "new")
    fill(tmp_path / ".model.abcd_123.unfinished" / "model.replaced", "old")
    sweep(tmp_path)
    assert (tmp_path / "model" / "a.txt").read_text() == "new"
    assert names(tmp_path) == {"model"}


def test_json_round_trips_and_has_no_nan(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"weights": [1.5, None], "name": "softmax"})
    assert json.loads((tmp_path / "a.json").read_text()) == {"weights": [1.5, None], "name": "softmax"}
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", {"loss": math.nan})
    assert "softmax" in (tmp_path / "a.json").read_text()


def test_text_is_utf8(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "α ≥ 0,3")
    assert (tmp_path / "a.txt").read_bytes().decode("utf-8") == "α ≥ 0,3"


def test_sha256_of_known_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert sha256(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SINKSCOPE_CACHE", str(tmp_path))
    assert cache_dir() == tmp_path
    monkeypatch.setenv("SINKSCOPE_CACHE", "")
    assert cache_dir() == Path.home() / ".cache" / "sinkscope"


def known(folder: Path) -> list[Path]:
    """What an earlier measurement may have left."""
    return [folder / name for name in ("a.csv", "b.csv", "c.csv")] + [folder / "part" / "x.nc"]


def replaced(folder: Path, *names: str) -> None:
    with replacing(folder, known) as draft:
        for name in names:
            (draft / name).parent.mkdir(parents=True, exist_ok=True)
            (draft / name).write_text(" ".join(names))


def contents(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_new_files_take_the_place_of_all_old_ones(tmp_path: Path) -> None:
    folder = tmp_path / "found"
    replaced(folder, "a.csv", "b.csv", "part/x.nc")
    (folder / "mine.txt").write_text("mine")
    replaced(folder, "b.csv", "c.csv")
    assert contents(folder) == {"b.csv": "b.csv c.csv", "c.csv": "b.csv c.csv", "mine.txt": "mine"}
    assert names(folder) == {"b.csv", "c.csv", "mine.txt"}


def failing(folder: Path) -> None:
    with replacing(folder, known) as draft:
        (draft / "a.csv").write_text("new")
        raise KeyError


def test_an_error_leaves_the_old_files_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "found"
    with pytest.raises(KeyError):
        failing(folder)
    assert not folder.exists()
    replaced(folder, "a.csv", "b.csv")
    with pytest.raises(KeyError):
        failing(folder)
    assert contents(folder) == {"a.csv": "a.csv b.csv", "b.csv": "a.csv b.csv"}
    assert names(folder) == {"a.csv", "b.csv"}


@pytest.mark.parametrize("moment", range(8))
def test_a_kill_never_leaves_old_beside_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int) -> None:
    folder, calls = tmp_path / "found", []
    replaced(folder, "a.csv", "b.csv")

    def counting(real: Callable) -> Callable:
        def call(*given: object, **options: object) -> object:
            if len(calls) == moment:
                raise KeyboardInterrupt
            calls.append(given)
            return real(*given, **options)

        return call

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", counting(os.replace))
        patched.setattr(Path, "unlink", counting(Path.unlink))
        try:
            replaced(folder, "b.csv", "c.csv")
        except KeyboardInterrupt:
            assert len(calls) == moment
    shown = {name: text for name, text in contents(folder).items() if "/" not in name}
    assert len({*shown.values()}) <= 1, shown
    replaced(folder, "a.csv")
    assert contents(folder) == {"a.csv": "a.csv"}
    assert names(folder) == {"a.csv"}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner, inner),
    )
)
def test_indented_json_is_what_json_writes(value: object) -> None:
    assert indented(value) == json.dumps(value, indent=2, allow_nan=False)


def test_indented_json_has_no_infinities() -> None:
    with pytest.raises(ValueError, match="JSON"):
        indented({"a": [{"b": [1, -math.inf]}]})
