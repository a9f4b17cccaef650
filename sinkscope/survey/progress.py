"""What a survey tells whoever watches it."""

from __future__ import annotations

from dataclasses import dataclass

from sinkscope.survey.rows import Row


@dataclass(frozen=True)
class Progress:
    """Where a survey stands: the how-manieth of all models (from 1), the input it reads, samples done of all.

    `rows`: what is finished. `samples` is 0 before the first batch is done; at the end `label` and `input` are empty.
    """

    model: int
    models: int
    label: str
    rows: tuple[Row, ...]
    input: str = ""
    done: int = 0
    samples: int = 0
