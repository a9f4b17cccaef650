"""`kill -9` of a queue at random moments: its records are those of one that nobody killed, bit for bit.

`SINKSCOPE_KILLS=20` for as many kills.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.experiments.helpers import assert_same_runs, longer, timeless, written

KILLS = int(os.environ.get("SINKSCOPE_KILLS", "3"))

pytestmark = [pytest.mark.long, pytest.mark.skipif(sys.platform != "linux", reason="kills process groups")]


def queue_of(mine: Path, folder: Path) -> subprocess.Popen[bytes]:
    command = (sys.executable, "-m", "tests.experiments.queue.killed_queue", str(mine), str(folder))
    return subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def test_a_queue_that_is_killed_again_and_again(small, tmp_path):
    mine, draw = written(longer(small()), tmp_path / "mine.py"), random.Random(KILLS)
    calm, folder = tmp_path / "calm", tmp_path / "killed"
    began = time.monotonic()
    assert queue_of(mine, calm).wait(timeout=400) == 0
    whole = time.monotonic() - began
    for _ in range(KILLS):
        process = queue_of(mine, folder)
        time.sleep(draw.uniform(0.2, 0.9) * whole)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    two = [queue_of(mine, folder) for _ in range(2)]  # which share what is left
    assert [process.wait(timeout=400) for process in two] == [0, 0]
    assert_same_runs(folder / "runs", calm / "runs")
    records = [timeless(place / "results" / "nano" / "mine.json") for place in (folder, calm)]
    assert records[0] == records[1]
