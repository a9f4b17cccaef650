"""What the README shows of a model: its report card on a terminal, by default and in full, and six lines of Python.

Run: python -m benchmarks.card_screens MODEL [--save]

With --save the screens go to results/real, and the card in full to the atlas in results/models.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import sinkscope as ss
from benchmarks.sides import REAL, provenance
from sinkscope.files import write_json

ATLAS = REAL.parent / "models"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--save", action="store_true", help="keep what is found in results")
    asked = parser.parse_args()
    if asked.model is None:  # as `make bench` calls it
        print(__doc__)
        return
    model = Path(asked.model).absolute()
    name = model.name
    with tempfile.TemporaryDirectory() as temporary:
        to = ATLAS if asked.save else Path(temporary)
        short = Path(temporary) / f"model{model.suffix}"  # as pages call it
        short.symlink_to(model)
        found = {"model": name, "default": screen(short, temporary)}
        found["full"] = screen(model, temporary, "--full", "--submit", str(to))
    found["python"] = measured(model)
    found["provenance"] = provenance()
    path = (REAL if asked.save else Path(tempfile.gettempdir())) / f"card_{name.partition('-')[0].lower()}.json"
    write_json(path, found)
    print(f"written: {path}")


def screen(model: Path, folder: str, *options: str) -> dict[str, Any]:
    """The lines that the command prints, without those that name files, and its seconds."""
    out = tempfile.mkdtemp(dir=folder)  # of its own, so that no section is reused
    call = [sys.executable, "-m", "sinkscope", "check", model.name, *options, "--out", out]
    start = time.perf_counter()
    # The command names the model as it is typed, here beside it. Without COLUMNS no line of the table is broken.
    apart = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    done = subprocess.run(call, check=True, stdout=subprocess.PIPE, text=True, cwd=model.parent, env=apart)
    lines = [line.rstrip() for line in done.stdout.splitlines() if not line.startswith("written: ")]
    return {"lines": lines, "seconds": time.perf_counter() - start}


def measured(model: Path) -> dict[str, str]:
    """What the lines of Python print."""
    m = ss.measure(str(model), texts=list(topics.values()), tokens=128, samples=24)
    return {"sink_rate": f"{m.sink_rate(position=0):.1f} %", "sinks": str(m.sinks())}


if __name__ == "__main__":
    main()
