"""What moves a sink that a model was trained with, and how many steps it takes: operations attached and trained.

A model by `--model NAME`, text from `--text FOLDER` (its .md files): the first files are held out,
each step reads 2 rows of 64 tokens of the others. AdamW without decay, gradients clipped at 1. Figures: negative
log-likelihood, sink rate and attention of position 0, and the mass of slots, before training and every 15 steps.

Run: python -m benchmarks.removing_a_sink --model FOLDER --text docs [--steps 30] [--save]
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import sinkscope as ss
from benchmarks.sides import beside, report

TOKENS, ROWS, HELD, EVERY = 64, 2, 8, 15
ARMS: dict[str, tuple[str | None, str, float, str]] = {
    "softmax, all weights": (None, "everything", 1e-4, "unchanged"),
    "sink_logit from closed, b alone": ("sink_logit", "operation", 0.1, "unchanged"),
    "sink_logit from closed, all weights": ("sink_logit", "everything", 1e-4, "unchanged"),
    "sink_logit from b = 0, b alone": ("sink_logit", "operation", 0.1, "as_is"),
    "sink_logit from b = 0, all weights": ("sink_logit", "everything", 1e-4, "as_is"),
    "sigmoid_bias, all weights": ("sigmoid_bias", "everything", 1e-4, "as_is"),
}
"""Operation, what learns, learning rate, start."""


def texts(folder: Path, tokenizer: Any) -> tuple[Tensor, list[int]]:
    """Rows that are held out, and the tokens of the other files in a row."""
    encoded = [tokenizer(path.read_text(encoding="utf-8"))["input_ids"] for path in sorted(folder.glob("*.md"))]
    held = torch.tensor([ids[:TOKENS] for ids in encoded if len(ids) >= TOKENS][:HELD])
    return held, [token for ids in encoded[HELD:] for token in ids]


def loaded(name: str) -> Any:
    """The model; a lab model as a Llama, to which operations are attached."""
    model: Any = ss.load(name)
    return model.to_llama() if hasattr(model, "to_llama") else model


def batches(stream: list[int], steps: int) -> Iterator[Tensor]:
    draw = random.Random(0)
    for _ in range(steps):
        starts = [draw.randrange(len(stream) - TOKENS) for _ in range(ROWS)]
        yield torch.tensor([stream[start : start + TOKENS] for start in starts])


def seen(model: Any, held: Tensor) -> dict[str, float]:
    with torch.no_grad():
        loss = float(model.eval()(held, labels=held).loss)
    measured = ss.measure(model, held, observers=["AttentionReceived", "SlotReceived"])
    received = measured.data["attention_received"].sel(position=0)
    slots = measured.data.get("slot_received")
    return {
        "nll": loss,
        "sink_rate": float(measured.sink_rate(epsilon=0.3, position=0)),
        "received": float(received.mean()),
        "slots": 0.0 if slots is None else float(slots.mean()),
    }


def trained(name: str, model: Any, held: Tensor, stream: list[int], steps: int) -> dict[str, dict[str, float]]:
    """What is seen of an arm at each multiple of `EVERY` steps."""
    operation, part, rate, start = ARMS[name]
    if operation is not None:
        ss.attach(model, operation, start=start, inputs=held)
    whole = operation is None or part == "everything"
    learning = list(model.parameters()) if whole else list(ss.trainable_only(model, part).values())
    optimizer = torch.optim.AdamW(learning, lr=rate, weight_decay=0.0)
    found = {"0": seen(model, held)}
    for step, batch in enumerate(batches(stream, steps), 1):
        optimizer.zero_grad()
        model.train()(batch, labels=batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(learning, 1.0)
        optimizer.step()
        if step % EVERY == 0:
            found[str(step)] = seen(model, held)
            print(f"{name}, step {step}: {found[str(step)]}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--save", action="store_true")
    asked = parser.parse_args()
    held, stream = texts(asked.text, ss.model.load_tokenizer(asked.model))
    arms = {name: trained(name, loaded(asked.model), held, stream, asked.steps) for name in ARMS}
    figures = [
        beside(
            f"{Path(asked.model).name}, {name}: {what} after {steps} steps / before", row[what], arm["0"][what], unit
        )
        for name, arm in arms.items()
        for steps, row in list(arm.items())[-1:]
        for what, unit in (("nll", "nats"), ("sink_rate", "%"))
    ]
    report("removing_a_sink", figures, arms)


if __name__ == "__main__":
    main()
