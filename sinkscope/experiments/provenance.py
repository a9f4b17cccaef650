"""What made the runs of an experiment."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from sinkscope.errors import InputError
from sinkscope.training import Run, versions


def provenance_of(runs: Iterable[Run], recorded: Iterable[tuple[Mapping[str, Any], int]] = ()) -> dict[str, Any]:
    """What made the runs, and further ones that were taken from records (`recorded`: its provenance, and how many).

    `versions` of the packages: where runs differ, all that there were. `hosts`: device, threads, system,
    architecture and whether `torch.compile` was used, each kind with the number of its runs; nothing that names a
    machine. A record does not say which of its runs was made where: when it has several kinds of host and not all its
    runs are taken, these stand without a number.
    """
    records = {run.path: _record(run) for run in runs}.values()
    kinds: dict[str, int | None] = {**Counter(_kind(record["host"]) for record in records if "host" in record)}
    used: dict[str, set[str]] = {}
    for record in records:
        for package, version in record.get("versions", {}).items():
            used.setdefault(package, set()).add(version)
    for provenance, taken in recorded:
        for package, found in provenance.get("versions", {}).items():
            used.setdefault(package, set()).update(found.split(", "))
        for kind, count in _counts(provenance.get("hosts", ()), taken).items():
            before = kinds.get(kind, 0)
            kinds[kind] = None if count is None or before is None else before + count
    return {
        "versions": {package: ", ".join(sorted(found)) for package, found in used.items()} or versions(),
        "hosts": [
            json.loads(kind) | ({} if count is None else {"runs": count}) for kind, count in sorted(kinds.items())
        ],
    }


def _counts(hosts: Iterable[Mapping[str, Any]], taken: int) -> dict[str, int | None]:
    """How many of the runs taken from a record each kind of host made, as far as that is known."""
    counts: dict[str, int | None] = {}
    for host in hosts:
        counts[_kind({name: value for name, value in host.items() if name != "runs"})] = host.get("runs")
    if len(counts) == 1:
        return dict.fromkeys(counts, taken)
    known = [count for count in counts.values() if count is not None]
    return counts if len(known) == len(counts) and sum(known) == taken else dict.fromkeys(counts)


def _kind(host: Mapping[str, Any]) -> str:
    return json.dumps(host, sort_keys=True)


def _record(run: Run) -> Mapping[str, Any]:
    try:
        return run.record
    except InputError:
        return {}  # damaged, which the run's failure tells
