"""The same program in several processes, as `torchrun` starts it, and what each of them said."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Launched:
    """How the launcher ended (1 if a process failed, whatever its code), its report, and each process's output."""

    code: int
    report: str
    out: list[str]
    err: list[str]


def launched(*arguments: object, logs: Path, processes: int = 2, **environment: str) -> Launched:
    """Run Python with `arguments` in several processes on this machine, on CPUs; `logs` takes their output.

    They are left without shape checks, which cost each of them seconds.
    """
    told = {"SINKSCOPE_NO_SHAPE_CHECKS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **environment}
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    done = subprocess.run(
        [sys.executable, *launcher, "--redirects=3", f"--log-dir={logs}", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | told,
        timeout=300,
    )
    written = {name: sorted(logs.glob(f"*/attempt_0/*/{name}.log")) for name in ("stdout", "stderr")}
    return Launched(
        done.returncode,
        done.stderr,
        *([path.read_text() for path in paths] for paths in written.values()),
    )
