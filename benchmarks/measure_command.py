"""What `sinkscope measure MODEL --samples 20` takes besides loading the model and the forward pass, and where it goes.

The command as it is typed, in a folder of its own, with its defaults: all observers, 20 windows of 64 tokens, 8 at a
time, tables and page. One thread, CPU time of the process, because weights are loaded by several threads. The parts:
the observers, and the rest: texts, the spectrum of the unembedding (once a model), the maps of six heads, tables, page.

`nano` has no bound: its forward pass takes less than drawing a page.

Run: python -m benchmarks.measure_command [--model NAME] [--save]
"""

from __future__ import annotations

import argparse
import io
import os
import time
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.memory import keep
from benchmarks.sides import Figure, at_most, beside, in_turns, report
from sinkscope.cli import main as sinkscope
from sinkscope.cli.opening import open_model, open_tokenizer, read_inputs
from sinkscope.cli.options import InputOptions, RunningOptions
from sinkscope.hooks import unembedding
from sinkscope.measurement import measure
from sinkscope.statistics.spectral import spectral_bands

SAMPLES, BANDS = 20, 20


def figures(name: str, bounded: bool, rounds: int) -> list[Figure]:
    """The command against its forward pass, and each part of what comes on top."""
    running = RunningOptions()
    model, tokenizer = open_model(name, running), open_tokenizer(name, running)
    reading = read_inputs(model, name, InputOptions(samples=SAMPLES), running)
    batch = running.batch_of(InputOptions().tokens)

    def load() -> None:
        open_model(name, running)
        open_tokenizer(name, running)

    def command() -> None:
        with TemporaryDirectory() as folder, chdir(folder):
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                code = sinkscope(["measure", name, "--samples", str(SAMPLES)])
            assert code == 0

    @torch.no_grad()
    def forward() -> None:
        for part in reading.parts:
            for rows in part["input_ids"].split(batch):
                model(rows, use_cache=False, logits_to_keep=1)

    sides = {
        "command": command,
        "load": load,
        "forward": forward,
        "all": lambda: measure(model, reading.parts, observers="all", batch_size=batch, tokenizer=tokenizer),
        "spectrum": lambda: spectral_bands(unembedding(model).clone(), BANDS),  # the weight itself is remembered
    }
    seconds = in_turns(sides, rounds, time.process_time)
    one, more = seconds["forward"], seconds["command"] - seconds["load"] - seconds["forward"]
    what = f"{Path(name).name}: all but loading and the forward pass / forward"
    return [
        at_most(what, more, one, 1.0) if bounded else beside(what, more, one),
        beside(f"{Path(name).name}: loading / forward", seconds["load"], one),
        beside(f"{Path(name).name}: all observers, without the pass itself / forward", seconds["all"] - one, one),
        beside(f"{Path(name).name}: texts, spectrum, maps, tables, page / forward", more + one - seconds["all"], one),
        beside(f"{Path(name).name}: of these the spectrum / forward", seconds["spectrum"], one),
    ]


def main() -> None:
    keep()
    options = argparse.ArgumentParser(allow_abbrev=False)
    options.add_argument("--model")
    options.add_argument("--save", action="store_true")
    torch.set_num_threads(1)
    if (name := options.parse_args().model) is None:
        report("measure_command", figures("nano", bounded=False, rounds=3))
    else:
        name = os.path.abspath(name) if Path(name).exists() else name  # the command runs in a folder of its own
        report(f"measure_command_{Path(name).name}", figures(name, bounded=True, rounds=1))


if __name__ == "__main__":
    main()
