"""The tests of the instrument see no questions and tasks of other packages, whatever is installed beside it."""

from __future__ import annotations

import pytest

from sinkscope import registry


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from sinkscope.experiments import QUESTIONS
    from sinkscope.experiments.jobs import TASKS

    monkeypatch.setattr(registry, "_OPENED", {*registry._OPENED, "question", "task"})
    for kinds in (QUESTIONS, TASKS):
        monkeypatch.setattr(kinds, "added", {})
