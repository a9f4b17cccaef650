"""What the command line's trials say of a pretrained model: `results/real/trials/`, a file per command.

    python -m tools.results_real MODEL --plan      # the table of hours
    python -m tools.results_real MODEL             # all that is not there yet, shortest first
    python -m tools.results_real MODEL cache-25-prose

A command that has finished is not run again; one that was stopped goes on from its last finished batch, which is kept
in `runs/results-real`. Texts are documentation (`python:prose`) and sources (`python:code`) of the installed Python
packages, in the chat format.
"""

from __future__ import annotations

import json
import platform
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
PACKAGES = ("sinkscope", "torch", "transformers")


@dataclass(frozen=True)
class Row:
    """A command, and the hours that it takes on SmolLM2-135M with two free cores, from its own `--plan`."""

    name: str
    hours: float
    arguments: tuple[str, ...]


def rows() -> list[Row]:
    """Every command, on 200 texts of each corpus; token by token 50, and of 2,048 tokens 20."""
    found = []
    texts = ("--tokens", "256", "--samples", "200")
    for corpus in CORPORA:
        source = ("--corpus", f"python:{corpus}", "--seed", "0")
        for budget in ("25", "10", "50"):
            found.append(Row(f"cache-{budget}-{corpus}", 0.4, ("cache", *texts, *source, "--budget", f"{budget}%")))
        found.append(
            Row(
                f"cache-engines-{corpus}",
                0.4,
                (
                    *("cache", "--tokens", "256", "--samples", "50", *source, "--budget", "25%"),
                    *("--compare", "llama.cpp,mlx,executorch,streaming-cache"),
                ),
            )
        )
        found.append(
            Row(
                f"cache-rounded-{corpus}",
                0.3,
                ("cache", *texts, *source, "--compare", "llama.cpp-q8_0,llama.cpp-q4_0,vllm-fp8"),
            )
        )
        long = ("--tokens", "2048", "--samples", "20", "--scored", "256", *source)
        found.append(
            Row(f"cache-long-{corpus}", 0.9, ("cache", *long, "--compare", "h2o,snapkv", "--budget", "10%,25%"))
        )
        samples = (*texts, *source, "--controls", "1")
        for scheme in ("kv4-kivi", "kv2-kivi", "w16a8-tensor", "w16a8-static"):
            in_activations = ("outliers", "measured+outliers") if scheme.startswith("w16a8") else ()
            choices = ("measured", *in_activations, "first:4")
            protect = tuple(word for choice in choices for word in ("--protect", choice))
            hours = 0.6 if in_activations else 0.4
            found.append(
                Row(f"quantize-{scheme}-{corpus}", hours, ("quantize", "--scheme", scheme, *samples, *protect))
            )
        found.append(Row(f"intervene-{corpus}", 0.6, ("intervene", *samples)))
        found.append(
            Row(f"calibrate-{corpus}", 0.6, ("calibrate", "--method", "zero-tuning", *samples[:-2], "--controls", "3"))
        )
    return sorted(found, key=lambda row: (not row.name.startswith("cache-25"), row.hours))


def run(row: Row, model: str) -> dict[str, Any]:
    """The command's own JSON, with what it takes to make it anew. Raises `RuntimeError` where it fails."""
    folder = UNFINISHED / row.name
    command = [sys.executable, "-m", "sinkscope", row.arguments[0], model, *row.arguments[1:], "--json"]
    clock, answer = folder / "seconds", folder / "answer.json"
    folder.mkdir(parents=True, exist_ok=True)
    seconds = float(clock.read_text()) if clock.exists() else 0.0  # of calls that were stopped
    with answer.open("w") as stdout:
        running = subprocess.Popen([*command, "--out", str(folder / "out")], stdout=stdout, cwd=ROOT)
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
        "command": " ".join(["sinkscope", row.arguments[0], Path(model).name, *row.arguments[1:]]),
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
        done = (FOLDER / f"{row.name}.json").exists()
        print(f"{row.name:32} {row.hours:4.1f} h  {'there' if done else ''}", flush=True)
    print(f"{'together':32} {sum(row.hours for row in chosen):4.1f} h", flush=True)
    for row in () if plan else chosen:
        path = FOLDER / f"{row.name}.json"
        if path.exists():
            continue
        FOLDER.mkdir(parents=True, exist_ok=True)
        text = json.dumps(run(row, model), indent=1)
        path.with_suffix(".tmp").write_text(f"{text}\n")
        path.with_suffix(".tmp").rename(path)
        print(f"{row.name}: stored", flush=True)


if __name__ == "__main__":
    typer.run(main)
