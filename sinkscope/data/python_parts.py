"""Parts of the corpus `python` that differ in kind: its code, its prose, and conversations about it [D4, D5, C8]."""

from __future__ import annotations

import ast
import hashlib
import json
import platform
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from sinkscope.data.cache import cached_folder
from sinkscope.data.conversations import HEAD, rendered
from sinkscope.data.corpus import Corpus, Document, Entry, digest
from sinkscope.data.python_corpus import load_python
from sinkscope.data.reading import read_text
from sinkscope.files import cache_dir, write_json

LAYOUT = 1  # to be raised when what is taken from a source changes
Definition = ast.FunctionDef | ast.AsyncFunctionDef
Texts = Iterator[tuple[str, str]]


def load_python_part(part: str) -> Corpus:
    """A part of the corpus `python`, made once and kept in the cache.

    `code`: sources without their docstrings (comments stay). `prose`: the docstrings of a source, and the help topics.
    Both keep the names of the corpus's documents, so that the split is the same and no text is in training here and in
    validation there. `chat`: a conversation for every function with a docstring, about its first paragraph: by turns
    the user shows the signature and asks what it is for, or says what it is for and asks for the signature. Sources
    that this Python cannot parse are left out. Raises `InputError` as `load_python` does.
    """
    whole = load_python()
    known = json.dumps([LAYOUT, part, digest(whole).hexdigest(), platform.python_version()])
    folder = cache_dir() / "python" / hashlib.sha256(known.encode()).hexdigest()[:24]
    cached_folder(folder, lambda draft: _store(whole, PARTS[part], draft))
    index: dict[str, tuple[int, int]] = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    entries = tuple(Entry(name, partial(read_text, folder / "text", *place)) for name, place in index.items())
    return replace(whole, name=f"python:{part}", entries=entries, chat=part == "chat")


def _store(whole: Corpus, part: Callable[[Document], Texts], draft: Path) -> None:
    index: dict[str, tuple[int, int]] = {}
    end = 0
    with (draft / "text").open("wb") as stream:
        for entry in whole.entries:
            for name, text in part(Document(entry.name, entry.read())):
                index[name] = (end, end := end + stream.write(text.encode()))
    write_json(draft / "index.json", index)


def code(document: Document) -> Texts:
    """The source without the lines of its docstrings; nothing of what is no source."""
    if (tree := _parsed(document)) is None:
        yield document.name, ""
        return
    docstrings = {
        line for statement in _docstrings(tree) for line in range(statement.lineno, (statement.end_lineno or 0) + 1)
    }
    lines = document.text.split("\n")  # as the parser counts them; a form feed ends none
    yield document.name, "\n".join(line for number, line in enumerate(lines, 1) if number not in docstrings)


def prose(document: Document) -> Texts:
    """The docstrings of a source, a line between them; a help topic as it is."""
    if document.name.startswith("topics/"):
        yield document.name, document.text
        return
    tree = _parsed(document)
    held = [] if tree is None else [ast.literal_eval(statement.value) for statement in _docstrings(tree)]
    yield document.name, "".join(f"{_dedented(text)}\n\n" for text in held)


def chat(document: Document) -> Texts:
    """The conversations about a source's functions."""
    if (tree := _parsed(document)) is None:
        return
    for number, function in enumerate(node for node in ast.walk(tree) if isinstance(node, Definition)):
        purpose = (ast.get_docstring(function) or "").split("\n\n")[0].strip()
        signature = f"def {function.name}({ast.unparse(function.args)})"
        if not purpose or HEAD.search(purpose + signature):
            continue
        asked = (f"What is this function for?\n{signature}", purpose)
        wanted = (f"Write the signature of a function.\n{purpose}", signature)
        question, answer = wanted if number % 2 else asked
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        yield f"{document.name}#{number:04d}", rendered(messages)


PARTS: Mapping[str, Callable[[Document], Texts]] = {"code": code, "prose": prose, "chat": chat}


def _parsed(document: Document) -> ast.Module | None:
    if document.name.startswith("topics/"):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # about odd escapes in other people's sources
            return ast.parse(document.text.lstrip("\ufeff"))
    except (SyntaxError, ValueError, RecursionError):
        return None


def _docstrings(tree: ast.Module) -> list[ast.Expr]:
    found = []
    for node in ast.walk(tree):
        body = node.body if isinstance(node, ast.Module | ast.ClassDef | Definition) else []
        first = body[0] if body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            found.append(first)
    return sorted(found, key=lambda statement: statement.lineno)


def _dedented(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().splitlines())
