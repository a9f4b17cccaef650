"""Attention operations against plain SDPA: forward and backward, and how memory grows. fp32, CPU.

Batch 1, 8 heads, head width 64, causal, T = 2048; memory at T = 2048 and 8192 above what was held before, each in a
process of its own.

Run: python -m benchmarks.attention_paths [--save]
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional as F

from benchmarks.memory import as_usual, keep
from benchmarks.sides import Figure, at_most, beside, in_turns, report
from sinkscope.attention import CATALOG, Visibility, explain

HEADS, DIM, LENGTH, LONG, ROUNDS = 8, 64, 2048, 8192, 5
SOFTMAX = ("k_bias", "kv_bias", "sink_logit", "softmax_off_by_one")
ELEMENTWISE = ("sigmoid", "elu", "relu", "softpick", "clipped_softmax")
FURTHER = ("sigmoid_normalized", "kernel_elu_normalized", "softmax_power", "stick_breaking", "forgetting_gate")
FASTER, SLOWER, GROWTH = 1.25, 3.0, 4.5


def side(name: str | None, length: int = LENGTH) -> Callable[[], object]:
    """Forward and backward of a catalog entry, or of plain SDPA."""
    random = torch.Generator().manual_seed(0)
    query, key, value, upstream = (torch.randn(1, HEADS, length, DIM, generator=random) for _ in range(4))
    inputs = [tensor.requires_grad_() for tensor in (query, key, value)]
    if name is None:
        return lambda: torch.autograd.grad(
            F.scaled_dot_product_attention(query, key, value, is_causal=True), inputs, upstream
        )
    operation = CATALOG[name].build(heads=HEADS, kv_heads=HEADS, head_dim=DIM, hidden_size=HEADS * DIM)
    hidden = torch.randn(1, length, HEADS * DIM, generator=random)
    learned = [*inputs, *operation.parameters()]
    visibility = Visibility.of(operation.spec.mask, length, length)

    def run() -> object:
        kept, carried = operation.before_cache(value, hidden)
        output = operation(query, key, kept, visibility, hidden, carried=carried).output
        return torch.autograd.grad(output, learned, upstream)

    return run


def peak(name: str, length: int) -> float:
    """Peak resident megabytes of a pass above what the process held before it."""
    command = [sys.executable, "-m", __spec__.name, "child", name, str(length)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=as_usual())
    return float(done.stdout.split()[-1])


def child(name: str, length: int) -> None:
    side(name, 256)()  # what kernels set up once is no part of the growth
    run = side(name, length)
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten: imports reach further than T = 2048
    before = resident("VmRSS")
    run()
    print(resident("VmHWM") - before)


def resident(what: str) -> float:
    """Megabytes of this process now (VmRSS) or at most (VmHWM). Linux only."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(what))


def growth(name: str) -> Figure:
    short, long = peak(name, LENGTH), peak(name, LONG)
    return at_most(f"{name}: peak at T = {LONG} / at T = {LENGTH}", long, short, GROWTH, "MB")


def main() -> None:
    keep()
    names = (*SOFTMAX, *ELEMENTWISE, *FURTHER)
    seconds = in_turns({"plain": side(None), **{name: side(name) for name in names}}, ROUNDS)

    def title(name: str) -> str:
        return f"{name} ({explain(CATALOG[name], 'cpu').kernel}) / plain SDPA, T = {LENGTH}"

    bounds = dict.fromkeys(SOFTMAX, FASTER) | dict.fromkeys(ELEMENTWISE, SLOWER)
    figures = [at_most(title(name), seconds[name], seconds["plain"], bound) for name, bound in bounds.items()]
    figures += [beside(title(name), seconds[name], seconds["plain"]) for name in FURTHER]
    report("attention_paths", figures + [growth(name) for name in ELEMENTWISE])


if __name__ == "__main__":
    child(sys.argv[2], int(sys.argv[3])) if sys.argv[1:2] == ["child"] else main()
