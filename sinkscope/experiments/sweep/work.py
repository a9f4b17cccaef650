"""`python -m sinkscope.experiments.sweep.work JOB.json OUT`: one run of a sweep, in a process of its own.

Exit code 0: the run is settled (finished or diverged) and observed. 2: it failed; the last line on stderr says why.
75: another process holds it; try again later.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path

from sinkscope.errors import InputError
from sinkscope.experiments.sweep.jobs import Job, job_from, kind_of
from sinkscope.training import Busy, Run, TrainingDiverged, keep_freed_memory, locked

SETTLED, FAILED, BUSY = 0, 2, 75


def work(job: Job, out: Path, device: str = "auto") -> int:
    """Do the job (or go on with it) and observe; the exit code."""
    from sinkscope.experiments.observing.settled import observed
    from sinkscope.experiments.sweep.runstore import RunStore

    try:
        folder = RunStore(out).run(job).path
        with suppress(TrainingDiverged):  # a result like any other
            kind_of(job).do(job, out, device)
        with locked(folder, "observing"):
            observed(Run(folder))
    except Busy:
        return BUSY
    except InputError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return FAILED
    return SETTLED


def main(arguments: list[str]) -> int:
    """Read the job and work."""
    path, out = arguments
    keep_freed_memory()
    return work(job_from(json.loads(Path(path).read_text(encoding="utf-8"))), Path(out))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
