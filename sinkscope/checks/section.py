"""A section of the report card: one question, the models it applies to, its cost, and how it is answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from sinkscope.checks.row import Answered
from sinkscope.checks.subject import CheckedModel, TextSet

Tier = Literal["default", "full"]
Progress = Callable[[int, int, str], object]
"""Called with the number of finished readings of a section, their total, and the result so far."""


@dataclass(frozen=True)
class CheckSection:
    """One question about a model.

    Args:
        name: Its name on the command line.
        title: The heading of its rows.
        tier: "default", or "full" for a section that takes longer.
        obstacle: `obstacle(subject)` is why the section does not apply to this model, or empty where it does.
        keys: The keys of its rows, as patterns of `fnmatch`.
        passes: About how many times it reads a set of texts; `planning` multiplies it by the seconds of one reading.
        run: `run(subject, texts, progress)` answers the question on one set of texts.
        extra_passes: Further readings, of the first set only.
        flags: The names from `FLAGS` that no other section raises.
        plain: It reads texts without what tokenizer and chat template add (`TextSet.plain`).
        media: It also reads images and recordings.
    """

    name: str
    title: str
    tier: Tier
    obstacle: Callable[[CheckedModel], str]
    keys: tuple[str, ...]
    passes: float
    run: Callable[[CheckedModel, TextSet, Progress | None], Answered]
    extra_passes: float = 0.0
    flags: tuple[str, ...] = ()
    plain: bool = False
    media: bool = False

    def has(self, key: str) -> bool:
        """Whether one of its rows may have this key."""
        return any(fnmatchcase(key, pattern) for pattern in self.keys)
