"""What the command line's trials say of a pretrained model: `results/real/trials/`, a file per command.

    python -m tools.results_real MODEL --plan      # the table of hours
    python -m tools.results_real MODEL             # all that is not there yet, shortest first
    python -m tools.results_real MODEL cache-25-prose

A command that has finished is not run again; one that was stopped goes on from its last finished batch, which is kept
in `runs/results-real`. Texts are documentation (`python:prose`) and sources (`python:code`) of Python and of packages
that `constraints.txt` pins, in the chat format; each result holds their hash and all versions.
"""

from __future__ import annotations

import json
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "results" / "real" / "trials"
UNFINISHED = ROOT / "runs" / "results-real"
STEP = 5.0  # seconds, to which the time of a command is known
CORPORA = ("prose", "code")
CHANGES = ("remove-onset", "zero-massive", "mean-massive", "zero-sink-heads", "suppress-bands", "first-view")
BATCHES = re.compile(r" --batch-size \d+")  # no result depends on them
PACKAGES = ("sinkscope", "torch", "transformers", "numpy")  # the texts come from the last three


@dataclass(frozen=True)
class Row:
    """A command, and the hours that it takes on SmolLM2-135M with two free cores.

    They are estimates: passes of the row (`--plan`), at 1 s of one core for 256 tokens read at once and 0.3 s for a
    step of 32 texts. On one thread, rows took from 0.2 h (cache-long-code) to 0.8 h (calibrate-prose).
    """

    name: str
    hours: float
    arguments: tuple[str, ...]


def rows() -> list[Row]:
    """Every command, on 200 texts of each corpus; on 50 for single changes, a prefix, what the sink is worth, or a pass
    per token; on 20 of 2,048 tokens.
    """
    found = []
    texts = ("--tokens", "256", "--samples", "200")
    step_by_step = ("--batch-size", "32")  # weights are read once for all texts of a step
    for corpus in CORPORA:
        source = ("--corpus", f"python:{corpus}", "--seed", "0")
        for budget in ("25", "10", "50"):
            found.append(Row(f"cache-{budget}-{corpus}", 0.2, ("cache", *texts, *source, "--budget", f"{budget}%")))
        few = ("--tokens", "256", "--samples", "50", *source)
        engines = ("--compare", "llama.cpp,mlx,executorch,streaming-cache", "--budget", "25%")
        found.append(Row(f"cache-engines-{corpus}", 0.2, ("cache", *few, *engines, *step_by_step)))
        rounded = ("--compare", "llama.cpp-q8_0,llama.cpp-q4_0,vllm-fp8")
        found.append(Row(f"cache-rounded-{corpus}", 0.3, ("cache", *texts, *source, *rounded, *step_by_step)))
        needles = ("--task", "recall", "--compare", "h2o,snapkv,keydiff", "--budget", "10%,25%,50%")
        found.append(Row(f"cache-needles-{corpus}", 0.3, ("cache", *few, *needles)))
        long = ("--tokens", "2048", "--samples", "20", "--scored", "256", *source)
        six = ("--compare", "h2o,snapkv", "--budget", "10%,25%,50%")
        found.append(Row(f"cache-long-{corpus}", 0.4, ("cache", *long, *six)))
        worth = ("--tokens", "128", "--samples", "50", *source, "--compare", "streaming,keydiff", "--without-sinks")
        found.append(Row(f"cache-sinks-{corpus}", 0.2, ("cache", *worth, "--budget", "25%")))
        samples = (*texts, *source, "--controls", "1")
        # Each choice is compared with as many random tokens and as many first ones.
        for scheme in ("kv8-kivi", "kv4-kivi", "kv2-kivi"):
            arguments = ("quantize", "--scheme", scheme, *samples, *protected("measured", "outliers"))
            found.append(Row(f"quantize-{scheme}-{corpus}", 0.35, arguments))
        for scheme in ("a8-tensor", "a8-static"):
            choices = protected("measured", "outliers", "measured+outliers")
            found.append(Row(f"quantize-{scheme}-{corpus}", 0.35, ("quantize", "--scheme", scheme, *samples, *choices)))
        prefix = ("--tokens", "128", "--samples", "50", *source, "--controls", "1", *protected("prefix", "measured"))
        found.append(Row(f"quantize-prefix-{corpus}", 0.15, ("quantize", "--scheme", "a8-tensor", *prefix)))
        found.append(Row(f"intervene-{corpus}", 0.4, ("intervene", *samples)))
        short = ("--tokens", "128", "--samples", "50", *source, "--controls", "2")
        for change in CHANGES:
            some = ("--strongest", "20") if change == "zero-sink-heads" else ()  # too few others remain for all of them
            found.append(Row(f"{change}-{corpus}", 0.03, ("intervene", *short, "--what", change, *some)))
        calibrating = ("--method", "zero-tuning", *texts, *source, "--controls", "3")
        found.append(Row(f"calibrate-{corpus}", 0.4, ("calibrate", *calibrating)))
    for sinks in ("0", "1", "4"):
        # Sampled: the likeliest tokens repeat one sentence, which a stream without sinks does as well.
        sampled = ("--temperature", "0.7", "--seed", "0")
        stream = ("--stream", "--sinks", sinks, "--window", str(256 - int(sinks)), "--endless", *sampled)
        prompt = ("--prompt", "The history of the printing press begins", "--max-tokens", "2000")
        found.append(Row(f"generate-stream-{sinks}", 0.05, ("generate", *stream, *prompt)))
    return sorted(found, key=lambda row: (not row.name.startswith("cache-25"), row.hours))


def protected(*choices: str) -> tuple[str, ...]:
    """The options that make each choice an arm."""
    return tuple(word for choice in choices for word in ("--protect", choice))


def command_of(row: Row, model: str) -> str:
    """The command as a user types it."""
    return shlex.join(["sinkscope", row.arguments[0], Path(model).name, *row.arguments[1:]])


def is_there(row: Row) -> bool:
    """Whether the result of this command is stored, of a file of any name and in batches of any size."""
    path = FOLDER / f"{row.name}.json"
    if not path.exists():
        return False
    stored = " ".join(shlex.split(json.loads(path.read_text())["command"])[3:]).replace("--windows", "--samples")
    return BATCHES.sub("", stored) == BATCHES.sub("", " ".join(row.arguments[1:]))


def run(row: Row, model: str) -> dict[str, Any]:
    """The command's own JSON, with what it takes to make it anew. Raises `RuntimeError` where it fails."""
    folder = UNFINISHED / row.name
    command = [sys.executable, "-m", "sinkscope", row.arguments[0], model, *row.arguments[1:], "--json"]
    clock, answer = folder / "seconds", folder / "answer.json"
    folder.mkdir(parents=True, exist_ok=True)
    seconds = float(clock.read_text()) if clock.exists() else 0.0  # of calls that were stopped
    if row.arguments[0] != "generate":  # which writes nothing but its answer
        command += ["--out", str(folder / "out")]
    with answer.open("w") as stdout:
        running = subprocess.Popen(command, stdout=stdout, cwd=ROOT)
        while running.poll() is None:
            time.sleep(STEP)
            seconds += STEP
            clock.write_text(str(seconds))
    if running.returncode:
        raise RuntimeError(f"{row.name}: exit code {running.returncode}")
    result = json.loads(answer.read_text())
    shutil.rmtree(folder)
    return {
        "name": row.name,
        "command": command_of(row, model),
        "model": Path(model).name,
        "seconds": round(seconds),
        "date": datetime.now(UTC).date().isoformat(),
        "threads": torch.get_num_threads(),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
        "result": result | {"model": Path(model).name},
    }


def main(
    model: str,
    names: Annotated[list[str] | None, typer.Argument(help="Rows; default: all.")] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Print the table of hours; run nothing.")] = False,
) -> None:
    """Run the commands whose results are not there yet, and store each as it finishes."""
    chosen = [row for row in rows() if not names or row.name in names]
    if names and (wrong := set(names) - {row.name for row in chosen}):
        raise typer.BadParameter(f"{sorted(wrong)}: none of {', '.join(row.name for row in rows())}")
    for row in chosen:
        done = is_there(row)
        print(f"{row.name:32} {row.hours:5.2f} h  {'there' if done else ''}", flush=True)
    print(f"{'together':32} {sum(row.hours for row in chosen):5.2f} h", flush=True)
    for row in () if plan else chosen:
        path = FOLDER / f"{row.name}.json"
        if is_there(row):
            continue
        FOLDER.mkdir(parents=True, exist_ok=True)
        text = json.dumps(run(row, model), indent=1)
        path.with_suffix(".tmp").write_text(f"{text}\n")
        path.with_suffix(".tmp").rename(path)
        print(f"{row.name}: stored", flush=True)


if __name__ == "__main__":
    typer.run(main)
