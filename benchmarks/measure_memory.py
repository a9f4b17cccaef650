"""Resident memory of a whole measuring process at T = 8192; the attention maps alone would take 17 GB.

8 layers, width 256, 8 heads. Run: python -m benchmarks.measure_memory [--save]
"""

from __future__ import annotations

import resource
import subprocess
import sys

from benchmarks.sides import at_most, beside, report

LENGTH, LIMIT = 8192, 2.0


def peak_of(what: str) -> float:
    """Peak resident gigabytes of a fresh process that runs the forward alone, or measures."""
    command = [sys.executable, "-m", __spec__.name, "child", what]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def child(what: str) -> None:
    import torch

    import sinkscope as ss
    from benchmarks.measure_overhead import model_of

    model, ids = model_of(LENGTH), torch.randint(0, 2048, (1, LENGTH))
    if what == "forward":
        with torch.no_grad():
            model(ids, use_cache=False, logits_to_keep=1)
    else:
        ss.measure(model, ids, observers=[ss.AttentionReceived("all")])
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2)


def main() -> None:
    measured, forward = peak_of("measure"), peak_of("forward")
    maps = 8 * 8 * LENGTH**2 * 4 / 1024**3
    report(
        "measure_memory",
        [
            at_most(f"peak of measuring / the limit of {LIMIT} GB", measured, LIMIT, 1.0, "GB"),
            beside("peak of measuring / peak of the forward alone", measured, forward, "GB"),
            at_most("peak of measuring / the attention maps", measured, maps, 0.12, "GB"),
        ],
    )


if __name__ == "__main__":
    child(sys.argv[2]) if sys.argv[1:2] == ["child"] else main()
