"""Questions and tasks of other packages."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from sinkscope.errors import InputError
from sinkscope.experiments.question import Question
from sinkscope.experiments.questions import QUESTIONS
from sinkscope.registry import taking

if TYPE_CHECKING:  # jobs load torch
    from sinkscope.experiments.jobs import Job

Asked = TypeVar("Asked", bound="Question | Callable[[], Question]")
Kind = TypeVar("Kind", bound="type[Job]")


@taking("question")
def question(asked: Asked) -> Asked:
    """Register a question: `sinkscope.question(Question(...))`, or `@sinkscope.question` over a function that makes it.

    Then its name stands for it in `sinkscope experiment list`, `show`, `run` and `verdict`, and reports judge its
    records. Returns what it was given. Raises `InputError` for anything else and for a name that is taken.
    """
    made = asked() if callable(asked) else asked
    if not isinstance(made, Question):
        raise InputError(f"sinkscope.question takes a Question, or a function that makes one; got {made!r}")
    if QUESTIONS.added.get(made.name) != made:  # as where an entry point names what is registered
        QUESTIONS.add(made.name, made)
    return asked


@taking("task")
def task(kind: Kind) -> Kind:
    """Register a task, a class of jobs: `@sinkscope.task` over a subclass of `Job` or `Task`.

    Its `kind` is its name: `experiments.task(name)` makes it a question's base, and a worker, which is a process of its
    own, makes its jobs again by that name; so a package that registers one also names it, or the module that decorates
    it, under the entry points `sinkscope.task`. Returns what it was given. Raises `InputError` for anything else and
    for a name that is taken.
    """
    from sinkscope.experiments.jobs import TASKS, Job

    if not (isinstance(kind, type) and issubclass(kind, Job)):
        raise InputError(f"@sinkscope.task decorates a subclass of sinkscope.experiments.Job, got {kind!r}")
    if not isinstance(getattr(kind, "kind", None), str):
        raise InputError(f"task {kind.__name__}: it has no `kind`, the name that it is found by")
    if kind.kind == Job.kind:
        raise InputError(f"task {kind.__name__}: '{kind.kind}' is the name of training by a recipe: choose another")
    if TASKS.added.get(kind.kind) is not kind:
        TASKS.add(kind.kind, kind)
    return kind
