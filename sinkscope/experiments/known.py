"""What is known of a question: the user's own record of it, and the rows that come with the question."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sinkscope.errors import InputError, unknown
from sinkscope.experiments import findings as kept
from sinkscope.experiments.findings import Findings
from sinkscope.experiments.keys import keys
from sinkscope.experiments.observed import Observed
from sinkscope.experiments.question import SCALES, Question
from sinkscope.experiments.rows import read_rows

RESULTS = Path("results/experiments")  # where `run` keeps what it finds


def known(question: Question, scale: str = "nano", results: Path = RESULTS) -> Findings | None:
    """The findings of a question: its own record under `results`, and the runs in its file of rows.

    Of a run that stands in both, the own record counts. None where there is no run of it at all. Raises `InputError`
    for an unknown scale and for files that cannot be read.
    """
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    for folder in (results, results / scale):
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is no folder: records are files in folders by scale")
    return with_rows(question, scale, kept.read(results, question.name, scale))


def with_rows(question: Question, scale: str, own: Findings | None) -> Findings | None:
    """A question's own findings and the runs in its file of rows; None where there are none."""
    if question.records is None:
        return own
    rows = read_rows(question.records)
    runs = {label: dict(seeds) for label, seeds in own.runs.items()} if own else {}
    added: dict[str, Observed] = {}
    for label, key in keys(question, scale).items():
        found = {seed: run for (other, seed), run in rows.items() if other == key}
        added |= {run.run: run for seed, run in found.items() if seed not in runs.get(label, {})}
        merged = found | runs.get(label, {})
        if merged or own:
            runs[label] = {seed: merged[seed] for seed in sorted(merged)}
    if not any(runs.values()):
        return own
    failed = still_failed(own.failed, runs) if own else {}
    seeds = max([own.seeds if own else 0, *(seed + 1 for found in runs.values() for seed in found)])
    provenance = own.provenance if own else {"hosts": _hosts(added.values())}
    return Findings(question.name, scale, seeds, runs, failed, provenance)


def still_failed(
    failed: Mapping[str, Mapping[int, str]], runs: Mapping[str, Mapping[int, Observed]]
) -> dict[str, dict[int, str]]:
    """The failures in whose place no run stands."""
    left = {
        label: {seed: why for seed, why in seeds.items() if seed not in runs.get(label, {})}
        for label, seeds in failed.items()
    }
    return {label: seeds for label, seeds in left.items() if seeds}


def _hosts(runs: Iterable[Observed]) -> list[dict[str, Any]]:
    """Each kind of host with the number of its runs, as far as they say so."""
    counts = Counter(json.dumps(dict(run.host), sort_keys=True) for run in runs if run.host)
    return [json.loads(kind) | {"runs": count} for kind, count in sorted(counts.items())]
