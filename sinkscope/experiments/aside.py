"""A record's next version: one writer at a time, and what it no longer holds is kept beside the records.

Nothing judges what is set aside.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, takewhile
from pathlib import Path

from filelock import FileLock

from sinkscope.errors import InputError
from sinkscope.experiments import findings as kept
from sinkscope.experiments.findings import Findings
from sinkscope.experiments.observed import Observed
from sinkscope.files import write_json

ASIDE = "set_aside"


@contextmanager
def held(folder: Path, question: str, scale: str) -> Iterator[None]:
    """While nobody else writes the record of a question: what is read inside is what is replaced.

    Raises `InputError` where there cannot be a lock.
    """
    path = kept.path_of(folder, question, scale)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.parent / f".{question}.lock")
        lock.acquire()
    except (OSError, NotImplementedError) as error:
        raise InputError(f"cannot write {path.parent}: {error}") from error
    try:
        yield
    finally:
        lock.release()


def replace(folder: Path, before: Findings | None, findings: Findings) -> Path:
    """Keep findings in the place of earlier ones, and set aside what they no longer hold, so that nothing is lost.

    That are runs of another version of the code or the text, of a variation that is gone, of a layout that is not read
    any more, and repeated ones with other numbers. They are written first; return where the findings are. The same as
    before are not written again.
    """
    if before is not None and before.same(findings):
        return kept.path_of(folder, findings.question, findings.scale)
    runs = before.runs if before else {}
    gone = {
        label: {seed: run for seed, run in seeds.items() if not _holds(findings, label, seed, run)}
        for label, seeds in runs.items()
    }
    if before is not None and any(gone.values()):
        _keep(folder / ASIDE, before, {label: seeds for label, seeds in gone.items() if seeds})
    return kept.write(folder, findings)


def set_aside(folder: Path, question: str, scale: str) -> list[Path]:
    """The files that hold what was set aside of a question: records of the same form."""
    return list(takewhile(Path.is_file, _places(folder / ASIDE, question, scale)))


def _holds(findings: Findings, label: str, seed: int, run: Observed) -> bool:
    known = findings.runs.get(label, {}).get(seed)
    if known is None or not known.same_training(run):
        return False
    return known.layout > run.layout or (known.layout == run.layout and known.agrees(run))


def _keep(folder: Path, before: Findings, gone: dict[str, dict[int, Observed]]) -> None:
    """Into the first file in which no other run stands in the place of one of these."""
    for path in _places(folder, before.question, before.scale):
        there = kept.read(folder, path.stem, before.scale) or Findings(before.question, before.scale, 0, {})
        runs = {label: dict(there.runs.get(label, {})) for label in (*there.runs, *gone)}
        cells = [(label, seed, run) for label, seeds in gone.items() for seed, run in seeds.items()]
        if all(runs[label].get(seed, run).agrees(run) for label, seed, run in cells):
            for label, seed, run in cells:
                runs[label][seed] = run
            seeds = max(there.seeds, before.seeds)
            write_json(path, Findings(before.question, before.scale, seeds, runs, {}, before.provenance).to_dict())
            return


def _places(folder: Path, question: str, scale: str) -> Iterator[Path]:
    """`question.json`, `question.2.json`, …"""
    for number in count(1):
        yield kept.path_of(folder, question if number == 1 else f"{question}.{number}", scale)
