"""A training step of the lab model with every operation of the catalog against softmax, at nano's shape. fp32, CPU.

4 layers, width 128, 4 heads, T = 128, batch 32: forward, backward, AdamW.

Run: python -m benchmarks.zoo_training [--save]
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.memory import keep
from benchmarks.sides import at_most, in_turns, report
from sinkscope.attention import CATALOG
from sinkscope.model import LabConfig, LabForCausalLM

BATCH, CONTEXT, ROUNDS, BOUND = 32, 128, 3, 1.5


def step_of(name: str, ids: torch.Tensor) -> Callable[[], None]:
    torch.manual_seed(0)
    model = LabForCausalLM(LabConfig(attention=name))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def main() -> None:
    keep()
    ids = torch.randint(0, LabConfig().vocab_size, (BATCH, CONTEXT), generator=torch.Generator().manual_seed(0))
    seconds = in_turns({name: step_of(name, ids) for name in CATALOG}, ROUNDS)
    others = [name for name in CATALOG if name != "softmax"]
    figures = [at_most(f"{name} / softmax, a step", seconds[name], seconds["softmax"], BOUND) for name in others]
    report("zoo_training", figures)


if __name__ == "__main__":
    main()
