"""`python -m tools.mutants`: break the code on purpose, one small change at a time, and see whether the tests notice.

Each mutant is a line that somebody could get wrong. It is applied to a copy of the repository, in which the fast tests
nearest to it run until the first one fails; a mutant that lets them pass survived, and is an error. A mutant whose line
is no longer there is stale, and an error too.

    python -m tools.mutants                    # all of them: minutes
    python -m tools.mutants --only probes/     # those whose file's path has this in it
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from rich.console import Console

from tools.mutants_caches import STREAMING
from tools.mutants_eviction import EVICTION
from tools.mutants_known import MUTANTS as KNOWN
from tools.mutants_known import Mutant

MUTANTS = (*KNOWN, *STREAMING, *EVICTION)
ROOT = Path(__file__).parent.parent
COPIED = ("sinkscope", "tests", "tools", "benchmarks", "pyproject.toml", "docs", "results", "README.md")
TOO_LONG = 600  # seconds: a mutant that makes tests hang is noticed as well


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
    path, began = copy / mutant.file, time.monotonic()
    original = path.read_text()
    path.write_text(original.replace(mutant.old, mutant.new))
    # Bytecode is kept apart, since a mutant and its original may be written within the same second.
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", *mutant.tests]
    try:
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=TOO_LONG)
        survived, output = done.returncode == 0, done.stdout[-2000:] + done.stderr[-500:]
        if done.returncode not in (0, 1, 2):  # 2: the mutant breaks the import of a test
            raise RuntimeError(f"{mutant.name}: pytest ended with {done.returncode}\n{output}")
    except subprocess.TimeoutExpired:
        survived, output = False, f"not done after {TOO_LONG} s"
    finally:
        path.write_text(original)
    return Outcome(mutant, survived, time.monotonic() - began, output)


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
                    shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
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
    parser.add_argument("--only", default="", help="a part of the paths or names of the mutants to try")
    parser.add_argument("--workers", type=int, default=2, help="how many to try at once")
    options = parser.parse_args(arguments)
    screen = Console()
    chosen = [mutant for mutant in MUTANTS if options.only in mutant.file or options.only in mutant.name]
    for mutant in (old := stale(chosen)):
        screen.print(f"stale: {mutant.name}: its line is no longer once in {mutant.file}, or its tests are gone")
    if old or not chosen:
        screen.print("nothing was tried" if chosen else f"no mutant has '{options.only}' in its name or path")
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
