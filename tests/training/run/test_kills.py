"""`kill -9` at any moment, then resume: the run ends as if nothing had been, bit for bit.

`SINKSCOPE_KILLS=20` for as many kills of each kind.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sinkscope.training import Recipe, train
from tests.training.helpers import assert_same_run

KILLS = int(os.environ.get("SINKSCOPE_KILLS", "10"))
CHANGES = ("steps=40", "save_every=3")

# One process imports everything and forks the ones that die: at the n-th file operation inside the run's folder (Python
# announces each one), or at a moment.
PROGRAM = """
import os, random, signal, sys, time
how, corpus, runs = sys.argv[1:]
from sinkscope.training import load_recipe, train
from tests.training.conftest import TINY
from tests.training.run.test_kills import CHANGES, KILLS

recipe = load_recipe("nano", [*TINY, f"data.corpus={corpus}", *CHANGES])
draw = random.Random(0)
left = 0

def deadly(event, arguments):
    global left
    if event in ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir") and runs in str(arguments[0]):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

def victim():
    if how == "file operations":
        sys.addaudithook(deadly)
    train(recipe, runs, progress=False, device="cpu", resume=True)

deaths = 0
for _ in range(KILLS):
    left = draw.randrange(1, 1000 // KILLS)  # of the run's few hundred operations
    child = os.fork()
    if child == 0:
        try:
            victim()
        finally:
            os._exit(1)
    if how == "moments":
        time.sleep(draw.uniform(0.1, 0.8))
        os.kill(child, signal.SIGKILL)
    deaths += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
print(deaths)
"""


@pytest.mark.release
@pytest.mark.parametrize("how", ["file operations", "moments"])
def test_a_run_killed_again_and_again(
    how: str, tiny: Callable[..., Recipe], corpus: str, runs: Path, tmp_path: Path
) -> None:
    undisturbed = train(tiny(*CHANGES), tmp_path / "undisturbed", progress=False, device="cpu")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3]), "SINKSCOPE_NO_SHAPE_CHECKS": "1"}
    command = [sys.executable, "-c", PROGRAM, how, corpus, str(runs)]
    killed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    assert int(killed.stdout) >= (KILLS // 2 if how == "file operations" else 1)  # a quick machine outruns some moments
    assert_same_run(train(tiny(*CHANGES), runs, progress=False, device="cpu", resume=True), undisturbed)
