"""A program for several processes: trains one recipe after the other, each a JSON object on the command line.

`recipe` holds overrides of the tests' tiny one, `out` the parent folder of runs, `die` a step in which all processes
are killed, `plain` leaves the sink callback out.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from transformers import TrainerCallback

from sinkscope.training import SinkCallback, load_recipe, session, train
from sinkscope.training.trainer import RecipeTrainer
from tests.training.conftest import TINY


def main(tasks: list[dict[str, Any]]) -> None:
    for task in tasks:
        if step := task.get("die"):
            kill_at(step)
        session.SinkCallback = silent if task.get("plain") else SinkCallback
        train(
            load_recipe("nano", [*TINY, *task["recipe"]]),
            task["out"],
            resume=True,
            progress=False,
            device="cpu",
            parallel=task.get("parallel", "auto"),
        )


def kill_at(step: int) -> None:
    whole_step = RecipeTrainer.training_step

    def deadly(self: RecipeTrainer, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step + 1 == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return whole_step(self, *args, **kwargs)

    RecipeTrainer.training_step = deadly


def silent(*args: Any, **kwargs: Any) -> Any:
    return TrainerCallback()


if __name__ == "__main__":
    main([json.loads(task) for task in sys.argv[1:]])
