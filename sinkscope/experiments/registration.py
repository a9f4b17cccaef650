"""A question's file, hashed into every run when it starts: whether claims were fixed before the runs that decide them.

The hash is of the file's raw bytes, which anyone can check: `git show COMMIT:FILE | sha256sum`. A question that
was made in a notebook has no file, and is never registered. Nor is one whose file imports more than sinkscope and the
standard library: margins in another module may change, and the hash stays.
"""

from __future__ import annotations

import ast
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sinkscope.errors import InputError
from sinkscope.experiments.observed import Observed
from sinkscope.files import write_json

REGISTERED = "registered.json"  # in a run's folder: by the name of a question, what its file was when the run started
SHORT = 12  # hex digits that people read


@dataclass(frozen=True)
class Registration:
    """The file that holds a question, the sha256 of its raw bytes, and what it imports that the hash does not cover."""

    path: Path
    sha256: str
    imports: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: Path) -> tuple[Registration, bytes]:
        """A file's registration and its bytes, read once. Raises `InputError` for a file that cannot be read."""
        try:
            content = path.read_bytes()
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}") from error
        return cls(path, hashlib.sha256(content).hexdigest(), _not_covered(content)), content

    def noted(self, values: str) -> dict[str, str]:
        """What a run keeps: the hashes of the file and of the question's `values`, the file's name, the version of
        sinkscope, and the commit that holds these very bytes.
        """
        facts = {"sha256": self.sha256, "values": values, "sinkscope": _release(), **self._committed()}
        return {"file": self.path.name, **facts}

    def _committed(self) -> dict[str, str]:
        """The newest commit and the file's path in it, where it holds the same bytes; empty outside of git."""

        def git(*arguments: str) -> bytes:
            command = ("git", "-C", str(self.path.resolve().parent), *arguments)
            return subprocess.run(command, capture_output=True, check=True, timeout=10).stdout

        try:
            commit = git("rev-parse", "HEAD").decode().strip()
            name = git("ls-files", "--full-name", "--", self.path.name).decode().strip()
            # A commit is noted only if it holds these bytes: the file may have been edited since.
            same = bool(name) and hashlib.sha256(git("show", f"{commit}:{name}")).hexdigest() == self.sha256
        except (OSError, subprocess.SubprocessError):
            return {}
        return {"commit": commit, "file": name} if same else {}


def registered(folder: Path) -> dict[str, dict[str, Any]]:
    """The notes about questions' files in a run's folder; empty if they are absent or damaged."""
    try:
        notes = json.loads((folder / REGISTERED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return notes if isinstance(notes, dict) and all(isinstance(note, dict) for note in notes.values()) else {}


def register(folder: Path, question: str, note: Mapping[str, str]) -> None:
    """Note a question's file in the folder of a run that has not started; notes of other questions stay."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / REGISTERED, {**registered(folder), question: dict(note)})


@dataclass(frozen=True)
class Standing:
    """Whether a question was registered before the runs that decide it, and in words why not; `edited`: its file was
    changed after some of them.
    """

    registered: bool
    words: str
    edited: bool = False


def standing(question: str, registration: Registration | None, values: str, runs: Iterable[Observed]) -> Standing:
    """Compare a question's file, and its `values` as they were built, with the hashes that runs carry."""
    notes = [dict(run.registered.get(question, {})) for run in {run.run: run for run in runs}.values()]
    if registration is None:
        return Standing(False, "unregistered: the question has no file of its own")
    if registration.imports:
        names = ", ".join(f"'{name}'" for name in registration.imports)
        return Standing(
            False,
            f"unregistered: {registration.path.name} imports {names}, which its hash does not cover; what decides "
            "belongs into the file, which may import sinkscope and the standard library",
        )
    if not notes:
        return Standing(True, f"registered: no run yet; sha256 {registration.sha256[:SHORT]}")
    hashes = [note.get("sha256", "") for note in notes]
    # Files alone are compared with a run of another version, whose rules may have other words.
    built = [note for note in notes if note.get("values", values) != values and note.get("sinkscope") == _release()]
    if built and all(each == registration.sha256 for each in hashes):
        words = (
            f"changed after {len(built)} of {_runs(len(notes))}: {registration.path.name} is the same file, but reads"
        )
        return Standing(False, f"{words} its seeds, changes or margins from elsewhere: write them into it", edited=True)
    if all(each == registration.sha256 for each in hashes):
        return Standing(True, f"registered before its {_runs(len(notes))}; {_checked(registration, notes[0])}")
    changed = [note for note in notes if note.get("sha256", registration.sha256) != registration.sha256]
    if changed:
        before, now = changed[0]["sha256"][:SHORT], registration.sha256[:SHORT]
        words = f"changed after {len(changed)} of {_runs(len(notes))}: sha256 was {before}, is {now}"
        return Standing(False, f"{words} ({_checked(registration, changed[0])})", edited=True)
    without = hashes.count("")
    return Standing(False, f"unregistered: {without} of {_runs(len(notes))} started without this file")


def _release() -> str:
    try:
        return version("sinkscope")
    except PackageNotFoundError:
        return ""


def _not_covered(content: bytes) -> tuple[str, ...]:
    """The modules that a file imports anywhere, except for sinkscope and the standard library."""
    try:
        nodes = list(ast.walk(ast.parse(content)))
    except (SyntaxError, ValueError):  # running the file reports it
        return ()
    names = [name.name for node in nodes if isinstance(node, ast.Import) for name in node.names]
    names += ["." * node.level + (node.module or "") for node in nodes if isinstance(node, ast.ImportFrom)]
    covered = {"sinkscope", *sys.stdlib_module_names}
    return tuple(dict.fromkeys(name for name in names if name.partition(".")[0] not in covered))


def _checked(registration: Registration, note: Mapping[str, Any]) -> str:
    if "commit" in note:
        return f"git show {note['commit'][:SHORT]}:{note['file']} | sha256sum gives {note['sha256'][:SHORT]}"
    return f"sha256sum {registration.path.name} gives {registration.sha256[:SHORT]}"


def _runs(many: int) -> str:
    return f"{many} run{'' if many == 1 else 's'}"
