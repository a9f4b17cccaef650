"""`python -m sinkscope_replication.records RESULTS`: add the runs of a folder of records to the rows of the study.

RESULTS is what `sinkscope experiment run` wrote. A run that is there already stays as it is: one that was made
again, on another machine or with other threads, ends elsewhere and is no further seed. Runs that were trained on
another text than those of the study (`runs.texts.json`) are not added.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sinkscope.experiments import SCALES, Key, Observed, keys, known, read_rows, write_rows
from sinkscope_replication.questions import QUESTIONS
from sinkscope_replication.records import RECORDS


def added(results: Path) -> dict[Key, Observed]:
    """The runs in a folder of records that the rows do not hold yet."""
    there = read_rows(RECORDS)
    found: dict[Key, Observed] = {}
    for scale in SCALES:
        for question in QUESTIONS.values():
            findings = known(question, scale, results)  # without runs on another text
            for label, key in keys(question, scale).items() if findings else ():
                for seed, run in findings.runs.get(label, {}).items():  # type: ignore[union-attr]
                    if (key, seed) not in there:
                        found.setdefault((key, seed), run)
    return found


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    new = added(Path(sys.argv[1]))
    write_rows(RECORDS, {**read_rows(RECORDS), **new})
    print(f"{len(new)} runs added to {RECORDS}")
