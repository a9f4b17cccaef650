"""Questions of other packages."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sinkscope.errors import InputError
from sinkscope.experiments.question import Question
from sinkscope.experiments.questions import QUESTIONS
from sinkscope.registry import taking

Asked = TypeVar("Asked", bound="Question | Callable[[], Question]")


@taking("question")
def question(asked: Asked) -> Asked:
    """Register a question: `sinkscope.question(Question(...))`, or `@sinkscope.question` over a function that makes it.

    Then its name stands for it in `sinkscope experiment list`, `show`, `run`, `verdict` and `queue`, and reports judge
    its records. Returns what it was given. Raises `InputError` for anything else and for a name that is taken.
    """
    made = asked() if callable(asked) else asked
    if not isinstance(made, Question):
        raise InputError(f"sinkscope.question takes a Question, or a function that makes one; got {made!r}")
    if QUESTIONS.added.get(made.name) != made:  # as where an entry point names what is registered
        QUESTIONS.add(made.name, made)
    return asked
