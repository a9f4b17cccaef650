"""The first half minute: the shipped model on natural, random and repeated input."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from sinkscope.data import build_inputs
from sinkscope.measurement import Measurement, measure, rate_at
from sinkscope.model import load, load_tokenizer

TOKENS, SAMPLES, EPSILON, SEED = 64, 100, 0.3, 0
INPUTS = {"natural": "natural text", "random": "random tokens", "repeated": "repeated token"}


def measure_model(model: str | Path, kinds: dict[str, str], folder: Path) -> dict[str, Measurement]:
    """Measure a model on inputs of the given kinds, each with a name; the measurements are stored in `folder`."""
    subject, tokenizer = load(model), load_tokenizer(model)
    found = {}
    for kind, name in kinds.items():
        inputs = build_inputs(
            kind,
            tokenizer=tokenizer,
            vocab_size=subject.config.vocab_size,
            tokens=TOKENS,
            samples=SAMPLES,
            seed=SEED,
        )
        about = {"kind": kind, "description": inputs.description, "first": inputs.first, "seed": SEED}
        found[name] = measure(subject, inputs.input_ids, batch_size=50, about=about)
        found[name].save(folder / f"{kind}.nc")
    return found


def input_table(look: dict[str, Measurement]) -> pd.DataFrame:
    """A row per input: what stood first, sink rate at position 0 with its interval, largest hidden-norm ratio."""
    rows = []
    for name, measured in look.items():
        rate = rate_at(measured.data, EPSILON)
        rows.append(
            {
                "input": name,
                "first": measured.record["input"]["first"],
                "sink_rate": round(rate.value, 2),
                "low": round(rate.low, 2),
                "high": round(rate.high, 2),
                "hidden norm ratio": round(float(measured.hidden_norm_ratio().max()), 2),
            }
        )
    return pd.DataFrame(rows)
