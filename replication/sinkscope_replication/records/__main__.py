"""`python -m sinkscope_replication.records RESULTS`: add the runs of a folder of records to the rows of the study.

RESULTS is what `sinkscope experiment run` wrote. A run that is there already stays as it is: one that was made
again, on another machine or with other threads, ends elsewhere and is no further seed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sinkscope.experiments import SCALES, Key, Observed, keys, read_findings, read_rows, write_rows
from sinkscope_replication.questions import QUESTIONS
from sinkscope_replication.records import RECORDS


def added(results: Path) -> dict[Key, Observed]:
    """The runs in a folder of records that the rows do not hold yet."""
    known = read_rows(RECORDS)
    found: dict[Key, Observed] = {}
    for scale in SCALES:
        for name, question in QUESTIONS.items():
            own = read_findings(results, name, scale)
            for label, key in keys(question, scale).items() if own else ():
                for seed, run in own.runs.get(label, {}).items():  # type: ignore[union-attr]
                    if (key, seed) not in known:
                        found.setdefault((key, seed), run)
    return found


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    new = added(Path(sys.argv[1]))
    write_rows(RECORDS, {**read_rows(RECORDS), **new})
    print(f"{len(new)} runs added to {RECORDS}")
