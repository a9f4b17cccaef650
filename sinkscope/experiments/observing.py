"""From a settled run to what an experiment knows of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sinkscope.errors import InputError
from sinkscope.experiments.observed import CURVES, Observed
from sinkscope.files import write_json
from sinkscope.probes import AttentionReceived, HiddenNorms, Measurement, QueryKeyValueNorms, SlotReceived, measure
from sinkscope.training import Recipe, Run
from sinkscope.training.kinds import LAB
from sinkscope.training.session import spread

OBSERVED = "observed.json"
TOKENS, SAMPLES, POSITIONS, EPSILON, BATCH = 64, 100, 8, 0.3, 20
EPSILONS, LENGTHS = (0.2, 0.3, 0.4, 0.5), (16, 32, 64)
LAYOUT = 1  # to be raised when the metrics, or how they are made, change


def observed(run: Run) -> Observed:
    """What is kept of a run, measured now if it was not before.

    Finished runs are measured on the first 64 tokens of up to 100 validation windows, as they were trained, and under
    other readings (see `Observed`). Raises `InputError` for a run that is not settled.
    """
    known = _stored(run.path / OBSERVED)
    if known is not None:
        return known
    found = _from_run(run)
    write_json(run.path / OBSERVED, {"layout": LAYOUT, **found.to_dict()})
    return found


def sink_metrics(measurement: Measurement) -> dict[str, float]:
    """The metrics of `Observed` that one measurement gives."""
    rates = measurement.sink_rate(epsilon=EPSILON).values
    half = (len(rates) + 1) // 2  # the last positions average over a few queries only
    strongest = int(rates[:half].argmax())
    found = {f"sink_{position}": float(rates[position]) for position in range(min(POSITIONS, len(rates)))}
    found |= {"strongest": float(rates[strongest]), "strongest_position": float(strongest)}
    if "slot_received" in measurement.data:
        found["slot"] = measurement.slot_rate(EPSILON)
    found["norm_ratio"] = float(measurement.hidden_norm_ratio().max())
    found["value_ratio"] = float(measurement.value_norm_ratio().min())
    for epsilon in EPSILONS:
        found[f"sink_0/epsilon={epsilon:g}"] = float(measurement.sink_rate(epsilon=epsilon, position=0))
    return found


def _stored(path: Path) -> Observed | None:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return Observed.from_dict(data) if data.pop("layout", None) == LAYOUT else None
    except (OSError, ValueError, AttributeError, InputError):
        return None  # absent or damaged: it can be made again


def _from_run(run: Run) -> Observed:
    record = run.record
    status = record["status"]
    if status not in ("finished", "diverged"):
        raise InputError(f"{run.path} is not settled: it is {status}")
    log = run.log
    rows = log.dropna(subset=["validation_loss"]) if "validation_loss" in log else log.iloc[:0]
    return Observed(
        run=run.path.name,
        status=status,
        seed=record["seed"],
        metrics=dict(_metrics(run, record)) if status == "finished" else {},
        steps=tuple(int(step) for step in rows["step"]) if len(rows) else (),
        curves={name: tuple(float(value) for value in rows[name]) for name in CURVES if name in rows},
        seconds=record["seconds"],
        reason=record["reason"] or "",
    )


def _metrics(run: Run, record: dict[str, Any]) -> Iterator[tuple[str, float]]:
    results = record["results"]
    last = {"loss": results.get("validation_loss"), "train_loss": results.get("loss")}
    yield from ((name, float(value)) for name, value in last.items() if value is not None)
    windows = _validation(Recipe(**record["recipe"]))
    yield from sink_metrics(_measured(run, windows[:, :TOKENS])).items()
    yield from _other_readings(run, windows)


def _other_readings(run: Run, windows: Tensor) -> Iterator[tuple[str, float]]:
    """The sink at position 0 at other lengths and on other inputs."""
    context = windows.shape[1]
    for tokens in sorted({min(length, context) for length in (*LENGTHS, context)}):
        yield f"sink_0/tokens={tokens}", _rate(run, windows[:, :tokens])
    draw = torch.Generator().manual_seed(0)
    shape, vocabulary = windows[:, :TOKENS].shape, run.model.config.vocab_size
    yield "sink_0/random", _rate(run, torch.randint(0, vocabulary, shape, generator=draw))
    yield "sink_0/repeated", _rate(run, torch.randint(0, vocabulary, (shape[0], 1), generator=draw).expand(shape))
    yield "sink_0/without_first", _rate(run, windows[:, 1 : TOKENS + 1])
    yield "loss/without_first", _loss(run, windows[:, 1:])


def _validation(recipe: Recipe) -> Tensor:
    windows = spread(LAB.data(recipe).validation, SAMPLES)
    return torch.stack([windows[index]["input_ids"] for index in range(len(windows))])


def _measured(run: Run, ids: Tensor) -> Measurement:
    observers = [AttentionReceived("all"), SlotReceived(), HiddenNorms(), QueryKeyValueNorms()]
    return measure(run.model, ids, observers, batch_size=BATCH)


def _rate(run: Run, ids: Tensor) -> float:
    seen = measure(run.model, ids, [AttentionReceived([0])], batch_size=BATCH)
    return float(seen.sink_rate(epsilon=EPSILON, position=0))


@torch.no_grad()
def _loss(run: Run, ids: Tensor) -> float:
    """Mean next-token cross-entropy in nats."""
    parts = [run.model(part, labels=part, use_cache=False).loss * len(part) for part in ids.split(BATCH)]
    return float(sum(parts) / len(ids))
