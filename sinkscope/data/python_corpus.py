"""The corpus `python`: real text that exists wherever sinkscope runs.

Sources of the running interpreter's standard library, its help topics, and the sources of the installed torch, numpy
and transformers: about 65 MB, 21 million tokens at a vocabulary of 2048.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import sysconfig
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics

from sinkscope.data.corpus import Corpus, Entry
from sinkscope.data.reading import read_bytes
from sinkscope.errors import InputError

PACKAGES = ("torch", "numpy", "transformers")
SKIPPED_FOLDERS = frozenset({"test", "tests", "testing", "idlelib", "lib2to3", "site-packages", "dist-packages"})
SKIPPED = (
    "transformers/models/*",  # 45 MB of near-identical files would outweigh everything else
    "stdlib/pydoc_data/topics.py",  # the topics are documents of their own
    "stdlib/_sysconfigdata*",  # written by the build: paths and flags of the machine that built it
    "stdlib/config-*",
    "stdlib/sitecustomize.py",
    "*/__config__.py",
    "torch/version.py",
)


def load_python() -> Corpus:
    """The corpus: a document is one file or one help topic, sorted by name (`torch/nn/functional.py`, `topics/assert`).

    Left out: test folders, idlelib, lib2to3, `transformers/models`, what the build wrote about its own machine, and
    files that are empty or not UTF-8. Nothing is imported for it. Raises `InputError` if a package is not installed.
    """
    roots = {"stdlib": Path(sysconfig.get_paths()["stdlib"])} | {name: _package(name) for name in PACKAGES}
    entries = [entry for name, root in roots.items() for entry in _sources(name, root)]
    entries += [Entry(f"topics/{topic}", partial(topics.__getitem__, topic)) for topic in topics]
    versions = {name: importlib.metadata.version(name).partition("+")[0] for name in PACKAGES}
    return Corpus(
        name="python",
        entries=tuple(sorted(entries, key=lambda entry: entry.name)),
        versions={"python": platform.python_version(), **versions},
    )


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"the corpus 'python' reads the sources of {name}, which is not installed")
    return Path(spec.submodule_search_locations[0])


def _sources(name: str, root: Path) -> Iterator[Entry]:
    for folder, below, files in os.walk(root):
        below[:] = [entry for entry in below if entry not in SKIPPED_FOLDERS]
        for file in files:
            path = Path(folder, file)
            relative = f"{name}/{path.relative_to(root).as_posix()}"
            if file.endswith(".py") and not any(fnmatchcase(relative, skipped) for skipped in SKIPPED):
                yield Entry(relative, partial(_read_source, path))


def _read_source(path: Path) -> str:
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError:
        return ""
