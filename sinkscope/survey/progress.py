"""What a survey reports while it runs."""

from __future__ import annotations

from dataclasses import dataclass

from sinkscope.survey.rows import Row


@dataclass(frozen=True)
class Progress:
    """Where a survey stands: the number of the model (from 1) among all, the input it reads, samples done of all.

    `rows`: what is finished. `samples` is 0 before the first batch is done; at the end `label` and `input` are empty.
    """

    model: int
    models: int
    label: str
    rows: tuple[Row, ...]
    input: str = ""
    done: int = 0
    samples: int = 0
