"""`python -m sinkscope.experiments.work RECIPE.json OUT`: one run of a sweep, in a process of its own.

Exit code 0: the run is settled (finished or diverged) and observed. 2: it failed; the last line on stderr says why.
75: another process holds it; try again later.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path

from sinkscope.errors import InputError
from sinkscope.training import Recipe, Run, keep_freed_memory, train
from sinkscope.training.store import Busy, TrainingDiverged, alone

SETTLED, FAILED, BUSY = 0, 2, 75


def work(recipe: Recipe, out: Path, device: str = "auto") -> int:
    """Train (or resume) and observe; the exit code."""
    from sinkscope.experiments.observing import observed
    from sinkscope.experiments.runstore import RunStore

    try:
        folder = RunStore(out).run(recipe).path
        with suppress(TrainingDiverged):  # a result like any other
            train(recipe, out, resume=True, progress=False, device=device)
        with alone(folder, "observing"):
            observed(Run(folder))
    except Busy:
        return BUSY
    except InputError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return FAILED
    return SETTLED


def main(arguments: list[str]) -> int:
    """Read the recipe and work."""
    path, out = arguments
    keep_freed_memory()
    return work(Recipe(**json.loads(Path(path).read_text(encoding="utf-8"))), Path(out))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
