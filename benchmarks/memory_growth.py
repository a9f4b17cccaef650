"""How the memory of measuring grows with the context: T = 2,048 to 32,768 on 2 layers, width 256, each in a process.

Run: python -m benchmarks.memory_growth [--save]
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time

from benchmarks.sides import Figure, at_most, report

SHORT, LONG = 2048, 32768
LIMIT = 3.0  # GB
MINUTES = 10.0


def run(what: str, length: int) -> tuple[float, float]:
    """Peak resident gigabytes and seconds of a fresh process that runs the forward alone, or measures."""
    command = [sys.executable, "-m", __spec__.name, "child", what, str(length)]
    start = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1]), time.perf_counter() - start


def child(what: str, length: int) -> None:
    import torch

    import sinkscope as ss
    from benchmarks.measure_overhead import model_of

    model, ids = model_of(length, layers=2), torch.randint(0, 2048, (1, length))
    if what == "forward":
        with torch.no_grad():
            model(ids, use_cache=False, logits_to_keep=1)
    else:
        ss.measure(model, ids)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2)


def main() -> None:
    peaks = {(what, length): run(what, length) for length in (SHORT, LONG) for what in ("forward", "measure")}
    above = {length: peaks["measure", length][0] - peaks["forward", length][0] for length in (SHORT, LONG)}
    growth = max(above[LONG], 0.0) / max(above[SHORT], 1e-3)
    peak, seconds = peaks["measure", LONG]
    report(
        "memory_growth",
        [
            Figure(
                f"growth of the peak above the forward / growth of T, {SHORT} to {LONG}",
                growth,
                LONG / SHORT,
                "x",
                "<= 1.1",
                growth <= 1.1 * LONG / SHORT,
            ),
            at_most(f"peak of measuring {LONG} tokens / the limit of {LIMIT} GB", peak, LIMIT, 1.0, "GB"),
            at_most(f"minutes for {LONG} tokens / the limit of {MINUTES:g}", seconds / 60, MINUTES, 1.0, "min"),
        ],
    )


if __name__ == "__main__":
    child(sys.argv[2], int(sys.argv[3])) if sys.argv[1:2] == ["child"] else main()
