"""The provenance of a report's numbers, as short facts for its footer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sinkscope.report.runs import StoredRun


def facts(runs: Sequence[StoredRun], records: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Versions, then one line per run and per measurement; `records` are the records of measurements, by name."""
    versions: dict[str, str] = {}
    for source in (*(run.record for run in runs), *records.values()):
        versions |= {name: str(version) for name, version in source.get("versions", {}).items()}
    lines = {"versions": joined(versions.items())} if versions else {}
    lines |= {f"run {run.label}": _run(run) for run in runs if run.record}
    return lines | {f"measurement {name}": _measurement(record) for name, record in records.items()}


def _run(run: StoredRun) -> str:
    record, recipe = run.record, run.record.get("recipe", {})
    data = record.get("data", {})
    shown = {
        "recipe": recipe.get("name"),
        "attention": recipe.get("attention"),
        "steps": f"{run.step} of {recipe.get('steps')}",
        "seed": record.get("seed"),
        "hash": record.get("hash"),
        "status": record.get("status"),
        "corpus": data.get("corpus"),
        "text sha256": str(data.get("text_sha256", ""))[:16],
        **{key: record.get("host", {}).get(key) for key in ("device", "threads")},
    }
    return joined(shown.items())


def _measurement(record: Mapping[str, Any]) -> str:
    inputs = record.get("input", {})
    shown = {
        "model": record.get("model"),
        "samples": record.get("samples"),
        "tokens": record.get("tokens"),
        "dtype": record.get("dtype"),
        "device": record.get("device"),
        "weights": ", ".join(record.get("metric_weights", [])),
        "input": inputs.get("description"),
        "at position 0": inputs.get("first"),
        "ids sha256": str(inputs.get("sha256", ""))[:16],
    }
    return joined(shown.items())


def recorded(record: Mapping[str, Any]) -> str:
    """A record in one line: what is neither text nor a number as JSON."""
    return joined(
        (name, value if isinstance(value, str | int | float) else json.dumps(value)) for name, value in record.items()
    )


def joined(pairs: Iterable[tuple[str, Any]]) -> str:
    """Names and values in one line, without empty values."""
    return " · ".join(f"{name} {value}" for name, value in pairs if value not in (None, ""))
