"""Questions and tasks by name: those of installed packages, and questions in a user's file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.abc import SourceLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sinkscope.errors import InputError, unknown
from sinkscope.experiments.question import Question
from sinkscope.experiments.registration import Registration
from sinkscope.registry import Registry, taking

if TYPE_CHECKING:  # jobs load torch
    from sinkscope.experiments.jobs import Job

EARLIER_NAMES = ("from_seed", "Withdrawn", "withdrawn", "diverges", "Above", "Below", "Within", "SeedsAbove")
NOW = "claims are written otherwise now: seeds=6 in the question; more_models, most_models, above, below, within"
QUESTIONS: Registry[Question] = Registry("question", what="experiment")
Asked = TypeVar("Asked", bound="Question | Callable[[], Question]")
Kind = TypeVar("Kind", bound="type[Job]")


@taking("question")
def question(asked: Asked) -> Asked:
    """Register a question: `sinkscope.question(Question(...))`, or `@sinkscope.question` over a function that makes it.

    Then `sinkscope experiment list`, `show`, `run` and `verdict` know its name, and reports judge its records. Returns
    its argument. Raises `InputError` for anything else and for a name that is taken.
    """
    made = asked() if callable(asked) else asked
    if not isinstance(made, Question):
        raise InputError(f"sinkscope.question takes a Question, or a function that makes one; got {made!r}")
    if QUESTIONS.added.get(made.name) != made:  # not equal if an entry point names what is registered already
        QUESTIONS.add(made.name, made)
    return asked


@taking("task")
def task(kind: Kind) -> Kind:
    """Register a task, a class of jobs: `@sinkscope.task` over a subclass of `Job` or `Task`.

    Its `kind` is its name: `experiments.task(name)` makes it a question's base, and worker processes rebuild its jobs
    by that name. So a package that registers a task also names it, or its module, under the entry points
    `sinkscope.task`. Returns its argument. Raises `InputError` for anything else and for a name that is taken.
    """
    from sinkscope.experiments.jobs import TASKS, Job

    if not (isinstance(kind, type) and issubclass(kind, Job)):
        raise InputError(f"@sinkscope.task decorates a subclass of sinkscope.experiments.Job, got {kind!r}")
    if not isinstance(getattr(kind, "kind", None), str):
        raise InputError(f"task {kind.__name__}: it has no `kind`, which is its name")
    if kind.kind == Job.kind:
        raise InputError(f"task {kind.__name__}: '{kind.kind}' is the name of training by a recipe: choose another")
    if TASKS.added.get(kind.kind) is not kind:
        TASKS.add(kind.kind, kind)
    return kind


def find(name: str) -> Question:
    """A question by its name, or the one in a Python file (`my_question.py`, or `file.py:name` if it holds several).

    The file is run like any Python program. Raises `InputError` for unknown names and files without a question.
    """
    path, _, wanted = name.partition(":")
    if not path.endswith(".py"):
        if not QUESTIONS:
            raise InputError(
                f"unknown experiment '{name}': none is installed; name a file that holds one, such as my.py"
            )
        if name not in QUESTIONS:
            raise unknown("experiment", name, QUESTIONS)
        return QUESTIONS[name]
    questions = questions_in(Path(path))
    if wanted:
        if wanted not in questions:
            raise unknown(f"experiment in {path}", wanted, questions)
        return questions[wanted]
    if len(questions) != 1:
        if not questions:
            raise InputError(f"{path} holds no experiment: it needs a value that is a sinkscope.experiments.Question")
        raise InputError(f"{path} holds {len(questions)} experiments ({', '.join(questions)}): name one as {path}:NAME")
    return next(iter(questions.values()))


def questions_in(path: Path) -> dict[str, Question]:
    """The questions in a Python file, by name, each with its registration; the file is run.

    Raises `InputError` where it cannot be.
    """
    if not path.is_file():
        raise InputError(f"no file {path}")
    registration, content = Registration.read(path)
    loader = _Bytes(path, content)
    spec = spec_from_loader(f"sinkscope_question_{path.stem}", loader)
    assert spec is not None
    module = module_from_spec(spec)
    try:
        loader.exec_module(module)
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"{path}: {type(error).__name__}: {error}{_hint(error)}") from error
    return {
        value.name: replace(value, registration=registration)
        for value in vars(module).values()
        if isinstance(value, Question)
    }


class _Bytes(SourceLoader):
    """Loads a module from bytes that were read: what is run is what is hashed, whoever edits the file meanwhile."""

    def __init__(self, path: Path, content: bytes) -> None:
        self.path, self.content = path, content

    def get_filename(self, fullname: str) -> str:
        return str(self.path)

    def get_data(self, path: str | bytes) -> bytes:
        return self.content


def _hint(error: BaseException) -> str:
    """What to write now, if a file was written for the earlier rules."""
    if isinstance(error, ImportError | TypeError) and any(name in str(error) for name in EARLIER_NAMES):
        return f"; {NOW}"
    return ""
