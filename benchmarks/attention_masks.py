"""Softmax under windows, documents, prefixes and padding, and the difference of two maps: time, and peak memory.

fp32, CPU, one thread and its own time; batch 1, 8 heads, head width 64. Time of forward and backward at T = 2048
against the plain causal triangle. Memory at T = 2048 and 8192, forward alone and with the backward pass: the peak of
resident memory (VmHWM, Linux) above what the process held before, each in a process of its own.

Run: python -m benchmarks.attention_masks [--save]
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.attention_paths import resident
from benchmarks.sides import Figure, at_most, beside, in_turns, report
from sinkscope.attention import CATALOG, Causal, Document, Mask, Visibility, VisiblePrefix, Window

HEADS, DIM, LENGTH, LONG, ROUNDS = 8, 64, 2048, 8192, 5
CAUSAL = Causal()
MASKS: dict[str, Mask] = {
    "causal": CAUSAL,
    "window of 256": CAUSAL & Window(256),
    "documents of 512": CAUSAL & Document(),
    "one document": CAUSAL & Document(),
    "prefix of 32": CAUSAL | VisiblePrefix(32),
    "left padding": CAUSAL,
}
NO_SLOWER = ("window of 256", "documents of 512", "one document", "prefix of 32", "left padding")
NOISE = 1.02  # what repeated timings of one and the same thing differ by, at most
GROWTH = 4.5  # of peak memory, where T grows four times and T² sixteen times


def side(name: str, length: int = LENGTH, backward: bool = True) -> Callable[[], object]:
    """Attention under a mask, or "differential" attention under the triangle."""
    random = torch.Generator().manual_seed(0)
    inputs = [torch.randn(1, HEADS, length, DIM, generator=random, requires_grad=backward) for _ in range(3)]
    upstream = torch.randn(1, HEADS, length, DIM, generator=random)
    spec = CATALOG["differential" if name == "differential" else "softmax"]
    operation = spec.build(heads=HEADS, kv_heads=HEADS, head_dim=DIM, hidden_size=HEADS * DIM)
    operation.requires_grad_(backward)
    documents = torch.arange(length)[None] // (512 if name == "documents of 512" else length)
    padding = (torch.arange(length)[None] >= length // 8).long() if name == "left padding" else None

    def run() -> object:
        seen = Visibility.of(MASKS.get(name, CAUSAL), length, length, attention_mask=padding, documents=documents)
        output = operation(*inputs, seen).output
        return torch.autograd.grad(output, inputs, upstream) if backward else output

    return run


def peak(name: str, length: int, passes: str) -> float:
    """Peak resident megabytes above what the process held before."""
    command = [sys.executable, "-m", __spec__.name, "child", name, str(length), passes]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def child(name: str, length: int, passes: str) -> None:
    torch.set_num_threads(1)
    side(name, 300)()  # what kernels set up once is no part of the growth
    run = side(name, length, passes == "both")
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    before = resident("VmRSS")
    run()
    print(resident("VmHWM") - before)


def growth(name: str, passes: str) -> Figure:
    what = {"forward": "forward", "both": "forward and backward"}[passes]
    short, long = peak(name, LENGTH, passes), peak(name, LONG, passes)
    title = f"{name}: peak of {what} at T = {LONG} / at T = {LENGTH}"
    return at_most(title, long, short, GROWTH, "MB")


def main() -> None:
    torch.set_num_threads(1)
    names = (*MASKS, "differential")
    seconds = in_turns({name: side(name) for name in names}, ROUNDS, time.thread_time)
    figures = []
    for name in names[1:]:
        title = f"{name} / causal, forward and backward, T = {LENGTH}"
        if name in NO_SLOWER:
            figures.append(at_most(title, seconds[name], seconds["causal"], NOISE))
        else:
            figures.append(beside(title, seconds[name], seconds["causal"]))
    report("attention_masks", figures + [growth(name, passes) for name in names for passes in ("forward", "both")])


if __name__ == "__main__":
    child(sys.argv[2], int(sys.argv[3]), sys.argv[4]) if sys.argv[1:2] == ["child"] else main()
