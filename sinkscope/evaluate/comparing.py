"""Every arm and the full cache, on the same texts: predictions, recall, generated tokens, memory, time."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Int
from torch import Tensor, nn

from sinkscope.errors import InputError
from sinkscope.evaluate.agreement import agreed
from sinkscope.evaluate.arms import FULL, Arm, with_full
from sinkscope.evaluate.comparison import CacheComparison
from sinkscope.evaluate.feeding import checked_ids
from sinkscope.evaluate.needles import Asked
from sinkscope.evaluate.perplexity import Scored, scored
from sinkscope.evaluate.recall import recalled
from sinkscope.evaluate.throughput import WARM_UP, clock_of, speeds
from sinkscope.hooks import device_of

Progress = Callable[[int, int, str], None]
"""Told how much is done, of how much, and what was found so far."""

UNITS = {
    "nll": "nats",
    "kl": "nats",
    "same": "share of tokens",
    "agreed": "tokens",
    "recall": "share of answers",
    "recall_seen": "share of answers",
    "held": "bytes a text, behind the context",
    "held_at_end": "bytes a text, at its end",
    "prefill_seconds": "s",
    "step_seconds": "s",
}
PACKAGES = ("sinkscope", "torch", "transformers")
Arrays = dict[str, tuple[tuple[str, ...], Any]]


def compare_caches(
    model: nn.Module,
    ids: Int[Tensor, "window position"],
    arms: Sequence[Arm],
    *,
    context: int,
    needles: Asked | None = None,
    generate: int = 0,
    rounds: int = 3,
    batch_size: int = 8,
    about: dict[str, Any] | None = None,
    progress: Progress | None = None,
) -> CacheComparison:
    """Every arm, and the full cache, on the same texts.

    `ids` (window, position): the first `context` tokens are read at once, whereupon a cache drops what it drops; the
    others are predicted one at a time. `needles` add recall; `generate` tokens written greedily add agreement; `rounds`
    of timing on the first batch, 0 for none. `batch_size` texts go through the model at once. `about` goes into the
    record. The seconds are the thread's own where one thread computes, else wall time (the record says which).

    Raises `InputError` for arms of one name, and for texts that are no longer than the context.
    """
    every = with_full(arms)
    ids = checked_ids(ids, context)
    if rounds and ids.shape[1] - context <= WARM_UP:
        raise InputError(f"timing needs {WARM_UP + 1} tokens behind the context: give longer texts, or no rounds")
    bar = _Bar(_work(every, ids, context, needles, generate, rounds, batch_size), progress)
    arrays = _losses(model, ids, every, context, batch_size, bar)
    if generate:
        parts = [
            agreed(model, part[:, :context], every, generate, bar.by(len(part) * generate))
            for part in ids.split(batch_size)
        ]
        arrays["agreed"] = ("arm", "window"), _stacked(parts, every)
    if needles is not None:
        arrays |= _recall(model, needles, every, batch_size, bar)
    if rounds:
        arrays |= _times(model, ids[:batch_size], every, context, rounds, bar)
    return CacheComparison(_dataset(arrays, every, _record(model, ids, context, needles, generate, batch_size, about)))


@dataclass
class _Bar:
    """How far a comparison is, in tokens read."""

    total: int
    progress: Progress | None
    done: int = 0
    said: str = ""

    def by(self, tokens: int) -> Callable[[], None]:
        def watch() -> None:
            self.done += tokens
            if self.progress is not None:
                self.progress(min(self.done, self.total), self.total, self.said)

        return watch


def _work(
    every: Sequence[Arm],
    ids: Tensor,
    context: int,
    needles: Asked | None,
    generate: int,
    rounds: int,
    batch_size: int,
) -> int:
    behind = ids.shape[1] - context
    asked = 0 if needles is None else len(needles) * 2 * needles.keys.shape[1]
    timed = (rounds + 1) * min(batch_size, len(ids)) * behind if rounds else 0
    return len(every) * (len(ids) * (behind + generate) + asked + timed)


def _losses(model: nn.Module, ids: Tensor, every: Sequence[Arm], context: int, batch_size: int, bar: _Bar) -> Arrays:
    found: dict[str, list[Scored]] = {arm.name: [] for arm in every}
    for part in ids.split(batch_size):
        for name, one in scored(model, part, every, context=context, watch=bar.by(len(part))).items():
            found[name].append(one)
        bar.said = _said(found)
    means = {
        field: np.stack(
            [torch.cat([getattr(one, field).double().mean(1) for one in found[arm.name]]).numpy() for arm in every]
        )
        for field in ("nll", "kl", "same")
    }
    held = [[found[arm.name][0].held[place] / len(found[arm.name][0].nll) for arm in every] for place in (0, 1)]
    return {
        **{field: (("arm", "window"), values) for field, values in means.items()},
        "held": (("arm",), np.array(held[0])),
        "held_at_end": (("arm",), np.array(held[1])),
    }


def _said(found: dict[str, list[Scored]]) -> str:
    """The loss so far of the full cache, and of the arm that is nearest to it."""
    mean = {name: float(torch.cat([one.nll for one in parts]).mean()) for name, parts in found.items()}
    rest = {name: value for name, value in mean.items() if name != FULL}
    best = min(rest, key=rest.__getitem__)
    return f"full {mean[FULL]:.3f} nats, best {best} {rest[best]:.3f}"


def _recall(model: nn.Module, needles: Asked, every: Sequence[Arm], batch_size: int, bar: _Bar) -> Arrays:
    parts = [
        recalled(model, part, every, bar.by(len(part) * 2 * part.keys.shape[1])) for part in needles.split(batch_size)
    ]
    unseen = [torch.cat([part[arm.name].unseen for part in parts]) for arm in every]
    seen = [torch.cat([part[arm.name].seen for part in parts]) for arm in every]
    return {
        "recall": (("arm", "row", "question"), torch.stack(unseen).double().numpy()),
        "recall_seen": (("arm", "row"), torch.stack(seen).double().numpy()),
    }


def _times(model: nn.Module, ids: Tensor, every: Sequence[Arm], context: int, rounds: int, bar: _Bar) -> Arrays:
    watch = bar.by(len(ids) * (ids.shape[1] - context))
    found = speeds(model, ids, every, context=context, rounds=rounds, watch=watch)
    return {
        "prefill_seconds": (("arm",), np.array([found[arm.name].prefill for arm in every])),
        "step_seconds": (("arm",), np.array([found[arm.name].step for arm in every])),
    }


def _stacked(parts: list[dict[str, Tensor]], every: Sequence[Arm]) -> np.ndarray:
    return np.stack([torch.cat([part[arm.name] for part in parts]).numpy() for arm in every])


def _dataset(arrays: Arrays, every: Sequence[Arm], record: dict[str, Any]) -> xr.Dataset:
    data = xr.Dataset(
        {name: (dims, values, {"units": UNITS[name]}) for name, (dims, values) in arrays.items()},
        coords={
            "arm": [arm.name for arm in every],
            "series": ("arm", [arm.series for arm in every]),
            "control": ("arm", np.array([arm.control for arm in every])),
        },
    )
    return data.assign_attrs(record=json.dumps(record))


def _record(
    model: nn.Module,
    ids: Tensor,
    context: int,
    needles: Asked | None,
    generate: int,
    batch_size: int,
    about: dict[str, Any] | None,
) -> dict[str, Any]:
    return {
        "model": getattr(getattr(model, "config", None), "name_or_path", "") or type(model).__name__,
        "class": type(model).__name__,
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "device": device_of(model).type,
        "threads": torch.get_num_threads(),
        "clock": clock_of(model),
        "windows": len(ids),
        "tokens": ids.shape[1],
        "context": context,
        "needles": None if needles is None else [len(needles), *needles.keys.shape[1:]],
        "generated": generate,
        "batch_size": batch_size,
        "protocol": "the context in one pass, then one given token at a time; positions of the text",
        "ids_sha256": hashlib.sha256(ids.cpu().numpy().tobytes()).hexdigest(),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
        **(about or {}),
    }
