"""`python -m tools.mutants`: break the code on purpose, one small change at a time, and see whether the tests notice.

Each mutant is a line that somebody could get wrong. It is applied to a copy of the repository, in which the tests
nearest to it run, those that CI runs, fast ones first, until one fails; a mutant that lets them pass survived, and is
an error. A mutant whose line is no longer there is stale, and an error too.

    python -m tools.mutants                    # all of them: minutes
    python -m tools.mutants --only probes/     # whose file's path or name has this, or one of several, in it
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from rich.console import Console

from tools.mutants_caches import STREAMING
from tools.mutants_eviction import EVICTION
from tools.mutants_known import MUTANTS as KNOWN
from tools.mutants_known import Mutant
from tools.mutants_quantized import QUANTIZED

MUTANTS = (*KNOWN, *STREAMING, *EVICTION, *QUANTIZED)
ROOT = Path(__file__).parent.parent
COPIED = ("sinkscope", "tests", "tools", "benchmarks", "pyproject.toml", "docs", "examples", "results", "README.md")
TOO_LONG = 600  # seconds: a mutant that makes tests hang is noticed as well
# Tests start as copies of a process that has imported the libraries, which takes longer than most of them.
FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(
    [
        "pytest",
        "hypothesis",
        "beartype",
        "jaxtyping",
        "torch._dynamo",
        "xarray",
        "transformers.models.llama.modeling_llama",
    ]
)


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant; `output` is the end of what the tests printed."""

    mutant: Mutant
    survived: bool
    seconds: float
    output: str


def stale(mutants: Sequence[Mutant], root: Path = ROOT) -> list[Mutant]:
    """Mutants whose text does not stand exactly once in their file, or whose tests do not exist."""
    return [
        mutant
        for mutant in mutants
        if (root / mutant.file).read_text().count(mutant.old) != 1
        or not all((root / test).exists() for test in mutant.tests)
    ]


def tried(mutant: Mutant, copy: Path) -> Outcome:
    """Run the mutant's tests in a copy of the repository in which it is applied."""
    path, log, began = copy / mutant.file, copy / "log", time.monotonic()
    kept = path.with_name(f"{path.name}.kept")
    shutil.copy2(path, kept)
    path.write_text(path.read_text().replace(mutant.old, mutant.new))
    running = FORKING.Process(target=_run_tests, args=(copy, mutant.tests, log))
    running.start()
    running.join(TOO_LONG)
    try:
        if running.exitcode is None:
            os.killpg(running.pid or 0, signal.SIGKILL)
            return Outcome(mutant, False, time.monotonic() - began, f"not done after {TOO_LONG} s")
        output = log.read_text()[-2500:]
        if running.exitcode not in (0, 1, 2):  # 2: the mutant breaks the import of a test
            raise RuntimeError(f"{mutant.name}: pytest ended with {running.exitcode}\n{output}")
        return Outcome(mutant, running.exitcode == 0, time.monotonic() - began, output)
    finally:
        running.join()
        kept.replace(path)  # with its own time, so that its bytecode is valid again


def _run_tests(copy: Path, tests: Sequence[str], log: Path) -> None:
    """In a process of its own: pytest in a copy of the repository, its output in `log`."""
    os.setsid()  # whoever ends this process ends those that it started
    written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(written, stream)
    temporary = copy.with_name(f"{copy.name}-temporary")
    temporary.mkdir(exist_ok=True)
    # A mutant leaves no bytecode, since it and its original may have been written within the same second.
    os.environ |= {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(temporary)}
    sys.dont_write_bytecode, tempfile.tempdir = True, None
    os.chdir(copy)
    sys.path[:] = [str(copy), *(place for place in sys.path if place not in ("", str(ROOT)))]
    for name in [name for name in sys.modules if name.partition(".")[0] == "tools"]:
        del sys.modules[name]  # the copy has its own
    import pytest

    # Assertions stay as written: pytest rewrites only what is not imported yet, and warns of its plugins that are.
    options = ["--assert=plain", "-x", "-q", "-m", "not matrix and not long", "-p", "no:cacheprovider"]
    sys.exit(int(pytest.main([*options, *tests], plugins=[FastFirst()])))


class FastFirst:
    """Most mutants are noticed by fast tests, in a part of the time that slow ones before them would take."""

    @staticmethod
    def pytest_collection_modifyitems(items: list[Any]) -> None:
        items.sort(key=lambda item: item.get_closest_marker("slow") is not None)


@contextmanager
def copies(count: int, root: Path = ROOT) -> Iterator[SimpleQueue[Path]]:
    """As many copies of the repository as mutants are tried at once."""
    free: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            copy = Path(folder) / str(number)
            for name in COPIED:
                source = root / name
                if source.is_dir():
                    shutil.copytree(source, copy / name)  # bytecode too: it is valid for files of the same time
                elif source.exists():
                    copy.mkdir(parents=True, exist_ok=True)
                    shutil.copy(source, copy / name)
            free.put(copy)
        yield free


def outcomes(mutants: Sequence[Mutant], workers: int, root: Path = ROOT) -> Iterator[Outcome]:
    """The outcome of each mutant, in the order in which they are given."""
    with copies(workers, root) as free, ThreadPoolExecutor(workers) as pool:

        def run(mutant: Mutant) -> Outcome:
            copy = free.get()
            try:
                return tried(mutant, copy)
            finally:
                free.put(copy)

        yield from pool.map(run, mutants)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where every mutant was noticed, 1 where one survived, 2 where one is stale or none was chosen."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[""], help="parts of the paths or names of the mutants to try")
    parser.add_argument("--workers", type=int, default=2, help="how many to try at once")
    options = parser.parse_args(arguments)
    screen = Console(soft_wrap=True)
    chosen = [mutant for mutant in MUTANTS if any(part in mutant.file or part in mutant.name for part in options.only)]
    for mutant in (old := stale(chosen)):
        screen.print(f"stale: {mutant.name}: its line is no longer once in {mutant.file}, or its tests are gone")
    if old or not chosen:
        asked = "', '".join(options.only)
        screen.print("nothing was tried" if chosen else f"no mutant has '{asked}' in its name or path")
        return 2
    survivors = 0
    for outcome in outcomes(chosen, options.workers):
        survivors += outcome.survived
        word = "[red]SURVIVED[/]" if outcome.survived else "noticed"
        screen.print(f"{word:10} {outcome.seconds:5.0f} s  {outcome.mutant.file}: {outcome.mutant.name}")
        if outcome.survived:
            screen.print(outcome.output, markup=False)
    screen.print(f"{len(chosen)} mutants, {survivors} survivors")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
