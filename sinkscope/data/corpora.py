"""The corpora and their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sinkscope.data.corpus import Corpus
from sinkscope.data.hub_corpus import load_hub
from sinkscope.data.python_corpus import load_python
from sinkscope.data.text_corpus import load_text
from sinkscope.errors import InputError, unknown

FORMS: Mapping[str, str] = {"python": "python", "text": "text:GLOB", "hf": "hf:NAME[:CONFIG[:SPLIT]]"}


def parse_corpus(name: str) -> tuple[str, str]:
    """Split a corpus's name into its kind and the rest. `InputError` if the name has none of the known forms."""
    kind, _, rest = name.partition(":")
    if kind not in FORMS:
        raise unknown("corpus", name, FORMS.values())
    if (rest == "") != (kind == "python"):
        raise InputError(f"corpus '{name}' is not of the form {FORMS[kind]}")
    return kind, rest


def load_corpus(name: str, max_characters: int | None = None) -> Corpus:
    """The corpus `python`, `text:GLOB` or `hf:NAME[:CONFIG[:SPLIT]]`; `max_characters` limits the last.

    Raises `InputError` for an unknown name and for what cannot be read.
    """
    kind, rest = parse_corpus(name)
    loaders: Mapping[str, Callable[[], Corpus]] = {
        "python": load_python,
        "text": lambda: load_text(rest),
        "hf": lambda: load_hub(rest, max_characters),
    }
    return loaders[kind]()
