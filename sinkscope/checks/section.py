"""A section of the report card: one question, whether it applies, what it takes, and what it finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from sinkscope.checks.row import Answered
from sinkscope.checks.subject import CheckedModel, TextSet

Tier = Literal["default", "full"]
Progress = Callable[[int, int, str], object]
"""Told how many readings of a section are done, of how many, and what was found so far."""


@dataclass(frozen=True)
class CheckSection:
    """One question about a model.

    Args:
        name: Its name on the command line.
        title: What heads its rows.
        tier: "default", or "full" for what takes longer.
        applies: `applies(subject)` is empty, or why the section says nothing about this model.
        passes: How many times it reads a set of texts, about; seconds follow from one reading.
        run: `run(subject, texts, progress)` finds its rows on one set of texts.
        every: Whether it is run on each set of texts, of which `--full` has two, or on the first alone.
        once: How many times it reads the first set besides.
    """

    name: str
    title: str
    tier: Tier
    applies: Callable[[CheckedModel], str]
    passes: float
    run: Callable[[CheckedModel, TextSet, Progress | None], Answered]
    every: bool = True
    once: float = 0.0
