"""The corpora and their names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from sinkscope.data.corpora.conversations import load_chat
from sinkscope.data.corpora.corpus import Corpus
from sinkscope.data.corpora.hub_corpus import load_hub
from sinkscope.data.corpora.python_corpus import PARTS, load_python, load_python_part
from sinkscope.data.corpora.text_files import load_text
from sinkscope.errors import InputError, unknown

PROSE = Path(__file__).parent / "prose"  # 72 short texts that come with the package
FORMS: Mapping[str, str] = {
    "prose": "prose",
    "python": "python",
    **{f"python:{part}": f"python:{part}" for part in PARTS},
    "text": "text:GLOB",
    "chat": "chat:GLOB",
    "hf": "hf:NAME[:CONFIG[:SPLIT]]",
}


def parse_corpus(name: str) -> tuple[str, str]:
    """Split a corpus's name into its kind and the rest. `InputError` if the name has none of the known forms."""
    kind, _, rest = name.partition(":")
    if kind not in FORMS or (kind == "python" and name not in FORMS):
        raise unknown("corpus", name, FORMS.values())
    if kind == "prose" and name != kind:
        raise unknown("corpus", name, FORMS.values())
    if rest == "" and kind not in ("prose", "python"):
        raise InputError(f"corpus '{name}' is not of the form {FORMS[kind]}")
    return kind, rest


def is_corpus(name: str) -> bool:
    """Whether a name is a corpus's rather than a domain's."""
    return name in ("prose", "python") or (name.partition(":")[0] in FORMS and ":" in name)


def is_chat(name: str) -> bool:
    """Whether a corpus, by its name, is one of conversations."""
    return name == "python:chat" or name.startswith("chat:")


def load_corpus(name: str, max_characters: int | None = None, field: str | None = None) -> Corpus:
    """The corpus of a name of one of `FORMS`; `max_characters` limits those of the hub.

    `field`: which field of a row is its text, in corpora `text:` of files of rows and `hf:`. Raises `InputError` for an
    unknown name, for what cannot be read, and for a field of a corpus without rows.
    """
    kind, rest = parse_corpus(name)
    if field is not None and kind not in ("hf", "text"):
        raise InputError(f"a field ('{field}') goes with files of rows and corpora of the hub, not with '{name}'")
    if kind == "prose":
        return replace(load_text(str(PROSE / "*.txt")), name="prose")
    if kind == "hf":
        return load_hub(rest, max_characters, field)
    if kind == "python":
        return load_python_part(rest) if rest else load_python()
    return load_text(rest, field) if kind == "text" else load_chat(rest)
