"""A backend without processes, a question in a file, runs compared bit for bit, a look at the processes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file

from sinkscope.experiments import Observed, Question
from sinkscope.experiments.jobs import LabTraining
from sinkscope.experiments.sweep.sweeping import Sweep
from sinkscope.experiments.sweep.worker import SETTLED, work
from sinkscope.training import Run
from tests.training.helpers import rows

HOST = {"device": "cpu", "threads": 1, "system": "Linux", "machine": "x86_64"}
TIMES = ("seconds", "seconds_per_run", "started")
SAID = (*TIMES, "registered")  # what is not the same in two folders of the same runs: a question's file may be in one
LONGER = {"steps": 60, "save_every": 15, "eval_every": 30}  # long enough to be killed amid, with checkpoints


class Here:
    """A backend without processes, which notes what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, jobs, out, workers, watch):
        self.asked += jobs
        sweep = Sweep(waiting=[])
        for name, job in jobs.items():
            code = work(job, out, device="cpu")
            (sweep.done.append(name) if code == SETTLED else sweep.failed.__setitem__(name, f"exit code {code}"))
        return sweep


def longer(question: Question, **changes: object) -> Question:
    """The question, its runs long enough to be interrupted."""
    return replace(question, shared={**question.shared, **LONGER, **changes})


def written(question: Question, path: Path) -> Path:
    """A file that holds a question of these variations, as a user would write it."""
    variations = ", ".join(f"Variation({v.label!r}, {dict(v.changes)!r})" for v in question.variations)
    path.write_text(
        "from sinkscope.experiments import Question, Variation, above, level\n"
        "claims = (above(-1.0, level('sink_0', 'one'), 'claim', 'its statement', 'a test'),)\n"
        f"mine = Question('mine', 'Is it?', 'a test', ({variations},), claims, {dict(question.shared)!r}, seeds=3)\n"
    )
    return path


def planted(name, out, seed=0, value=1.0, version="1", layout=LabTraining.layout):
    """The folder of a finished run, as far as findings read it."""
    (out / name).mkdir(parents=True)
    record = {"status": "finished", "data": {}, "host": HOST, "versions": {"torch": version}}
    (out / name / "record.json").write_text(json.dumps(record))
    told = Observed(name, "finished", seed, {"sink_0": value}, layout=layout)
    (out / name / "observed.json").write_text(json.dumps(told.to_dict()))


def assert_same_runs(one: Path, other: Path) -> None:
    """The same runs in both folders: observations, logs without repeated rows, results and weights, bit for bit."""
    names = sorted(path.parent.name for path in other.glob("*/observed.json"))
    assert names == sorted(path.parent.name for path in one.glob("*/observed.json"))
    assert names
    for name in names:
        assert timeless(one / name / "observed.json") == timeless(other / name / "observed.json")
        assert rows(Run(one / name)) == rows(Run(other / name))
        steps = [row["step"] for row in rows(Run(one / name))]
        assert steps == sorted(set(steps))
        assert results(one / name) == results(other / name)
        first, second = (load_file(folder / name / "model" / "model.safetensors") for folder in (one, other))
        assert first.keys() == second.keys()
        assert all(torch.equal(first[key], second[key]) for key in first)


def timeless(path: Path) -> object:
    """A JSON file without the times in it, and without the question's file."""
    return json.loads(path.read_text(), object_pairs_hook=lambda pairs: {k: v for k, v in pairs if k not in SAID})


def results(folder: Path) -> dict:
    """Status and last metrics of a record, without those that are times."""
    record = json.loads((folder / "record.json").read_text())
    return {"status": record["status"], "step": record["step"]} | {
        name: value for name, value in record["results"].items() if name != "tokens_per_second"
    }


def resumed(folder: Path) -> int:
    """How often a run was resumed from a checkpoint."""
    notes = json.loads((folder / "record.json").read_text())["notes"]
    return len([note for note in notes if note.startswith("resumed from")])


def has_checkpoint(folder: Path) -> bool:
    """Whether a whole checkpoint of the run is there."""
    return any((folder / "checkpoints").glob("checkpoint-*/manifest.json"))


def children(pid: int) -> list[int]:
    """The processes that a process started."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(child) for child in path.read_text().split()]
    return found


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
