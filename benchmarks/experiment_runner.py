"""What a sweep's runner costs: its share of a run, and a thousand runs that exist already.

Run: python -m benchmarks.experiment_runner [--save] [--tiny]

Two figures, on the first two processors of the machine:

- the runner's overhead per run: eight tiny runs, made by a sweep of one worker, less the time that the same work takes
  in a process that is warm. It contains the start of the worker's process with all of its imports, orders, polling and
  the findings; what training and observing cost by themselves is on both sides;
- a thousand runs that exist: a question asks for them, finds them in the store, reads what was observed, writes its
  findings, and the table of verdicts is made of those. The process that does so has been started; what
  the commands take with their own start and imports is printed beside it.

`--tiny` makes few and short runs, to see that everything works; its numbers mean nothing.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import torch

from benchmarks.sides import Figure, beside, in_turns, report
from sinkscope.experiments import Question, Variation, above, gap, run
from sinkscope.experiments.sweep.store import RunStore
from sinkscope.experiments.sweep.worker import SETTLED, work

TINY = "--tiny" in sys.argv
RUNS, ROUNDS = (2, 1) if TINY else (8, 2)
SEEDS, MANY = 2, 10 if TINY else 500  # a thousand cells
SHORT = {"eval_every": 1000, "save_every": 1000, "schedule.warmup": 1}
SMALL = SHORT | {
    "name": "tiny",
    "steps": 4,
    "batch_size": 4,
    "context": 32,
    "validation_windows": 8,
    "model.hidden_size": 16,
    "model.num_hidden_layers": 2,
    "model.num_attention_heads": 2,
    "model.intermediate_size": 24,
    "data.tokenizer": "bpe:300",
    "data.validation_share": 0.2,
}


def question(runs: int, shared: dict) -> Question:
    """One that varies the learning rate, which changes no run's cost."""
    rates = tuple(Variation(f"rate {index}", {"optimizer.lr": 1e-4 * (index + 1)}) for index in range(runs))
    claim = above(
        0.0, gap("loss", rates[0].label, rates[-1].label), "falls", "a higher rate learns more", "none", symmetric=True
    )
    return Question("many", "What does it cost?", "a benchmark", rates, (claim,), shared, seeds=SEEDS)


def fresh(root: Path, make: Callable[[Path], object]) -> Callable[[], None]:
    """The same again in a new folder each time, which is removed."""
    numbers = itertools.count()

    def again() -> None:
        folder = root / str(next(numbers))
        make(folder)
        shutil.rmtree(folder)

    return again


def overhead(root: Path, corpus: str) -> list[Figure]:
    asked = question(RUNS, SMALL | {"data.corpus": corpus})

    def by_sweep(folder: Path) -> None:
        found = run(asked, seeds=1, out=folder / "runs", results=folder / "results", workers=1)
        if found.failed:
            raise SystemExit(f"runs failed: {found.failed}")

    def here(folder: Path) -> None:
        if any(work(job, folder, device="cpu") != SETTLED for job in asked.recipes("nano", 1).values()):
            raise SystemExit("a run failed")

    one_thread = {"sweep": fresh(root / "sweep", by_sweep), "work": fresh(root / "work", here)}
    seconds = in_turns(one_thread, ROUNDS)
    each = (seconds["sweep"] - seconds["work"]) / RUNS
    return [
        Figure("the runner's overhead per run of 8 / the limit", each, 1.0, "s", "<= 1", each <= 1.0),
        beside("tiny sweep / the same work in a warm process", seconds["sweep"], seconds["work"]),
    ]


def thousand(root: Path, corpus: str) -> list[Figure]:
    from sinkscope.cli import main

    asked = question(MANY, SMALL | {"data.corpus": corpus})
    out, results = root / "runs", root / "results"
    store, cells = RunStore(out), asked.recipes("nano", SEEDS)
    made = next(iter(cells.values()))
    work(made, root / "made", device="cpu")
    template = RunStore(root / "made").run(made).path
    for (_, seed), job in cells.items():
        folder = store.run(job).path
        folder.mkdir(parents=True)
        for name in ("record.json", "observed.json"):
            told = json.loads((template / name).read_text()) | {"seed": seed}
            (folder / name).write_text(json.dumps(told | ({"run": folder.name} if name == "observed.json" else {})))
    source = root / "many.py"
    source.write_text(
        "from benchmarks.experiment_runner import MANY, SMALL, question\n"
        f"many = question(MANY, SMALL | {{'data.corpus': {corpus!r}}})\n"
    )
    places = ("--out", str(out), "--results", str(results))

    def command(*arguments: str) -> None:
        with redirect_stdout(StringIO()):
            if main(["experiment", *arguments]) != 0:
                raise SystemExit(f"{arguments} failed")

    def process(*arguments: str) -> None:
        subprocess.run([sys.executable, "-m", "sinkscope", "experiment", *arguments], check=True, capture_output=True)

    # Whether the collector goes through half a million objects of imported modules in the middle of a command depends
    # on what ran in this process before. What that costs a command of its own is in the sides that are processes.
    command("list", "--results", str(results))
    gc.collect()
    gc.freeze()
    seconds = in_turns(
        {
            "ask": lambda: command("run", str(source), "--seeds", str(SEEDS), *places),
            "judge": lambda: command("verdict", str(source), "--results", str(results)),
            "list": lambda: command("list", "--results", str(results)),
        },
        3,
    )
    gc.unfreeze()
    of_processes = in_turns(
        {
            "ask": lambda: process("run", str(source), "--seeds", str(SEEDS), *places),
            "list": lambda: process("list", "--results", str(results)),
        },
        2,
    )
    whole = seconds["ask"] + seconds["list"]
    return [
        Figure("1,000 runs that exist, listed, judged, rendered / the limit", whole, 1.0, "s", "<= 1", whole <= 1.0),
        beside("judging and rendering 1,000 runs from their record / all of it", seconds["judge"], whole),
        beside("experiment run as a new process, imports included / all of it", of_processes["ask"], whole),
        beside("experiment list as a new process / all of it", of_processes["list"], whole),
    ]


def written(folder: Path) -> str:
    """A corpus of 25 short files, by its name."""
    folder.mkdir()
    for index in range(25):
        draw = random.Random(index)
        (folder / f"{index}.txt").write_text(" ".join(draw.choice(("the", "sink", "of", "all")) for _ in range(400)))
    return f"text:{folder}/*.txt"


def main() -> None:
    if sys.platform == "linux":
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="sinkscope-benchmark-") as scratch:
        root = Path(scratch)
        corpus = written(root / "corpus")
        figures = [*overhead(root / "overhead", corpus), *thousand(root / "thousand", corpus)]
    report("experiment_runner", figures)


if __name__ == "__main__":
    main()
