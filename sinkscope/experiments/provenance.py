"""What made the runs of an experiment."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from sinkscope.errors import InputError
from sinkscope.training import Run
from sinkscope.training.record import read_record, versions


def provenance_of(runs: Iterable[Run]) -> dict[str, Any]:
    """What made the runs: versions of the packages, and the kinds of machine.

    `versions`: where runs differ, all that there were. `hosts`: device, threads, system and architecture, each kind
    with the number of its runs; nothing that names a machine.
    """
    records = {run.path: _record(run) for run in runs}.values()
    kinds = Counter(json.dumps(record["host"], sort_keys=True) for record in records if "host" in record)
    used: dict[str, set[str]] = {}
    for record in records:
        for package, version in record.get("versions", {}).items():
            used.setdefault(package, set()).add(version)
    return {
        "versions": {package: ", ".join(sorted(found)) for package, found in used.items()} or versions(),
        "hosts": [{**json.loads(kind), "runs": count} for kind, count in sorted(kinds.items())],
    }


def _record(run: Run) -> Mapping[str, Any]:
    try:
        return read_record(run.path) or {}
    except InputError:
        return {}  # damaged, which the run's failure tells
