"""`ss.compare`: measurements, saved ones, models and checkpoints side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from sinkscope.errors import InputError
from sinkscope.measurements import Comparison, Comparisons, Measurement
from sinkscope.measurements import compare as side_by_side
from sinkscope.measuring.face import measure
from sinkscope.names import shortened

SAVED = "measurement.nc"
READ = ("inputs", "texts")


def compare(
    first: Measurement | nn.Module | str | Path,
    second: Measurement | nn.Module | str | Path,
    *more: Measurement | nn.Module | str | Path,
    names: tuple[str, ...] | list[str] | None = None,
    **measuring: Any,
) -> Comparison | Comparisons:
    """Put two things side by side, or several beside the first: `.table()`, `.heads(position)`, `.plot(position)`.

    Each is a `Measurement`, the file of a saved one or a folder that `sinkscope measure` wrote, or a model: by value,
    as a folder (a checkpoint), a hub id or a shipped name. Models are measured on what `inputs` or `texts` give, with
    the other options of `measure`. Samples are resampled together where both saw the same token ids, as models of one
    tokenizer do. Raises `InputError` for models without inputs, for inputs where nothing is left to measure, and as
    `measure` and `load` do.
    """
    given = (first, second, *more)
    stored = [saved(each) for each in given]
    reads = any(measuring.get(name) is not None for name in READ)
    if all(each is not None for each in stored) and measuring:
        raise InputError(f"everything was measured already: {', '.join(sorted(measuring))} would change nothing")
    if not all(each is not None for each in stored) and not reads:
        missing = next(label(each) for each, one in zip(given, stored, strict=True) if one is None)
        raise InputError(f"'{missing}' is to be measured: pass inputs=… or texts=…, which all models then read")
    found = [one or measure(each, **measuring) for each, one in zip(given, stored, strict=True)]  # type: ignore[arg-type]
    called = tuple(names) if names is not None else distinct([label(each) for each in given])
    return side_by_side(*found, names=called)


def saved(thing: object) -> Measurement | None:
    """A measurement, or the one that was saved there; None for what is to be measured."""
    if isinstance(thing, Measurement):
        return thing
    if not isinstance(thing, str | Path):
        return None
    path = Path(thing).expanduser()
    if path.suffix == ".nc":
        return Measurement.load(path)
    return Measurement.load(path / SAVED) if (path / SAVED).is_file() else None


def label(thing: object) -> str:
    """What a thing is called in a table."""
    if isinstance(thing, str | Path):
        return str(thing)
    if isinstance(thing, Measurement):
        return str(thing.record["model"])
    return str(getattr(getattr(thing, "config", None), "name_or_path", "") or type(thing).__name__)


def distinct(labels: list[str]) -> tuple[str, ...]:
    """The labels, of paths as short as tells them apart, numbered where they repeat."""
    labels = list(shortened(labels))
    return tuple(
        text if labels.count(text) == 1 else f"{text} ({labels[: place + 1].count(text)})"
        for place, text in enumerate(labels)
    )
