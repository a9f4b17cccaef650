"""The questions that installed packages register under a name, and those in a user's own file."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from sinkscope.errors import InputError, unknown
from sinkscope.experiments.question import Question
from sinkscope.registry import Registry

QUESTIONS: Registry[Question] = Registry("question", what="experiment")


def find(name: str) -> Question:
    """A question by its name, or the one in a Python file (`my_question.py`, or `file.py:name` where it holds several).

    The file is run as any Python program is. Raises `InputError` for unknown names and files without a question.
    """
    path, _, wanted = name.partition(":")
    if not path.endswith(".py"):
        if name not in QUESTIONS:
            raise unknown("experiment", name, QUESTIONS)
        return QUESTIONS[name]
    found = questions_in(Path(path))
    if wanted:
        if wanted not in found:
            raise unknown(f"experiment in {path}", wanted, found)
        return found[wanted]
    if len(found) != 1:
        raise InputError(f"{path} holds {len(found) or 'no'} experiments ({', '.join(found)}): name one as {path}:NAME")
    return next(iter(found.values()))


def questions_in(path: Path) -> dict[str, Question]:
    """The questions in a Python file, by name; the file is run. Raises `InputError` where it cannot be."""
    if not path.is_file():
        raise InputError(f"no file {path}")
    spec = importlib.util.spec_from_file_location(f"sinkscope_question_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{path}: {type(error).__name__}: {error}") from error
    return {value.name: value for value in vars(module).values() if isinstance(value, Question)}
