"""What simulated 8-bit activations cost: a pass under each kind of range, with and without protected tokens.

A pretrained model, 8 texts of 128 tokens, CPU time of one thread, against the plain pass. Protected are the first token
of each text and one in fifty others.

Run: python -m benchmarks.rounding [--model NAME] [--save]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch

import sinkscope as ss
from benchmarks.changing import passes
from benchmarks.folding import texts
from benchmarks.sides import at_most, in_turns, report
from sinkscope.quantization import QuantizeLinear, scheme_named
from sinkscope.sinks import Rows, Tokens
from sinkscope.trials.schemes import serving

TEXTS, TOKENS, ROUNDS, BOUND = 8, 128, 3, 1.1
SCHEMES = ("w16a8-token", "w16a8-tensor", "w16a8-static")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--save", action="store_true", help="keep the figures in results/benchmarks")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    model: Any = ss.load(asked.model).eval()
    rows = texts(asked.model, TOKENS, 2 * TEXTS)
    mask = torch.rand(TEXTS, TOKENS, generator=torch.Generator().manual_seed(0)) < 0.02
    mask[:, 0] = True
    protected = Tokens(mask.numpy()[:, None, None], Rows.plain([TOKENS] * TEXTS))
    sides: dict[str, QuantizeLinear | None] = {"plain": None}
    for name in SCHEMES:
        made = scheme_named(name).make(model, {"input_ids": rows[TEXTS:]}, None)
        sides |= {name: made, f"{name}, tokens protected": serving(made, protected)}

    seconds = in_turns(
        {name: passes(model, rows[:TEXTS], change) for name, change in sides.items()}, ROUNDS, time.thread_time
    )
    plain = seconds.pop("plain")
    figures = [at_most(f"{name} / a plain pass", side, plain, BOUND) for name, side in seconds.items()]
    report(f"rounding_{Path(asked.model).name}", figures)


if __name__ == "__main__":
    main()
