"""`python -m tests.experiments.queue.killed_queue QUESTION.py FOLDER`: a queue to be killed."""

from __future__ import annotations

import sys
from pathlib import Path

from sinkscope.experiments import find
from sinkscope.experiments.queue.order import Wanted
from sinkscope.experiments.queue.working import work_off

if __name__ == "__main__":
    question, folder = find(sys.argv[1]), Path(sys.argv[2])
    order = (Wanted(question.name, (), (0, 1), "all"),)
    places = {"out": folder / "runs", "results": folder / "results", "folders": ()}
    work_off(questions={question.name: question}, order=order, workers=2, **places)
