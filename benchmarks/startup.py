"""What importing sinkscope adds to importing torch, and how fast `sinkscope --help` answers.

Run: python -m benchmarks.startup [--save]
"""

from __future__ import annotations

import subprocess
import sys

from benchmarks.sides import Figure, in_turns, report

ROUNDS = 5


def main() -> None:
    def python(code: str) -> None:
        subprocess.run([sys.executable, "-c", code], check=True)

    def answer() -> None:
        subprocess.run([sys.executable, "-m", "sinkscope", "--help"], check=True, capture_output=True)

    seconds = in_turns(
        {
            "torch": lambda: python("import torch"),
            "both": lambda: python("import torch, sinkscope"),
            "help": answer,
        },
        ROUNDS,
    )
    added = seconds["both"] - seconds["torch"]
    report(
        "startup",
        [
            Figure("added by importing sinkscope / the limit", added, 0.3, "s", "<= 1", added <= 0.3),
            Figure("sinkscope --help / the limit", seconds["help"], 1.0, "s", "<= 1", seconds["help"] <= 1.0),
        ],
    )


if __name__ == "__main__":
    main()
