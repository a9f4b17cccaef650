"""The corpus `python`, real text that exists wherever sinkscope runs, and its parts.

Sources of the running interpreter's standard library, its help topics, and the sources of the installed torch, numpy
and transformers: about 65 MB, 21 million tokens at a vocabulary of 2048. The parts differ in kind: its code, its prose,
and conversations about it.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fnmatch import translate
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics

from sinkscope.data.corpora.conversations import HEAD, rendered
from sinkscope.data.corpora.corpus import Corpus, CorpusEntry, TextDocument, digest, read_bytes, read_text
from sinkscope.errors import InputError
from sinkscope.files import cache_dir, cached_folder, write_json

PACKAGES = ("torch", "numpy", "transformers")
SKIPPED_FOLDERS = frozenset({"test", "tests", "testing", "idlelib", "lib2to3", "site-packages", "dist-packages"})
SKIPPED_PATHS = (
    "transformers/models/*",  # 45 MB of near-identical files would outweigh everything else
    "stdlib/pydoc_data/topics.py",  # the topics are documents of their own
    "stdlib/_sysconfigdata*",  # written by the build: paths and flags of the machine that built it
    "stdlib/config-*",
    "stdlib/sitecustomize.py",
    "*/__config__.py",
    "torch/version.py",
)
SKIPPED = re.compile("|".join(map(translate, SKIPPED_PATHS)))
LAYOUT = 1  # to be raised when what is taken from a source changes

Definition = ast.FunctionDef | ast.AsyncFunctionDef
NamedTexts = Iterator[tuple[str, str]]


def load_python() -> Corpus:
    """The corpus: a document is one file or one help topic, sorted by name (`torch/nn/functional.py`, `topics/assert`).

    Left out: test folders, idlelib, lib2to3, `transformers/models`, what the build wrote about its own machine, and
    files that are empty or not UTF-8. Nothing is imported for it. Raises `InputError` if a package is not installed.
    """
    roots = {"stdlib": Path(sysconfig.get_paths()["stdlib"])} | {name: _package(name) for name in PACKAGES}
    entries = [entry for name, root in roots.items() for entry in _sources(name, root)]
    entries += [CorpusEntry(f"topics/{topic}", partial(topics.__getitem__, topic)) for topic in topics]
    versions = {name: importlib.metadata.version(name).partition("+")[0] for name in PACKAGES}
    return Corpus(
        name="python",
        entries=tuple(sorted(entries, key=lambda entry: entry.name)),
        versions={"python": platform.python_version(), **versions},
    )


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"the corpus 'python' reads the sources of {name}, which is not installed")
    return Path(spec.submodule_search_locations[0])


def _sources(name: str, root: Path) -> Iterator[CorpusEntry]:
    for folder, below, files in os.walk(root):  # strings: a `Path` for each of 20,000 files takes long
        within = name + folder.removeprefix(str(root)).replace(os.sep, "/")
        below[:] = [each for each in below if each not in SKIPPED_FOLDERS and not SKIPPED.match(f"{within}/{each}/")]
        for file in files:
            relative = f"{within}/{file}"
            if file.endswith(".py") and not SKIPPED.match(relative):
                yield CorpusEntry(relative, partial(_read_source, Path(folder, file)))


def _read_source(path: Path) -> str:
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError:
        return ""


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
    entries = tuple(CorpusEntry(name, partial(read_text, folder / "text", *span)) for name, span in index.items())
    return replace(whole, name=f"python:{part}", entries=entries, chat=part == "chat")


def _store(whole: Corpus, part: Callable[[TextDocument], NamedTexts], draft: Path) -> None:
    index: dict[str, tuple[int, int]] = {}
    end = 0
    with (draft / "text").open("wb") as stream:
        for entry in whole.entries:
            for name, text in part(TextDocument(entry.name, entry.read())):
                # Evaluated from left to right: the end before this text, and the one after it.
                index[name] = (end, end := end + stream.write(text.encode()))
    write_json(draft / "index.json", index)


def code(document: TextDocument) -> NamedTexts:
    """The source without the lines of its docstrings; nothing of what is no source."""
    if (tree := _parsed(document)) is None:
        yield document.name, ""
        return
    docstrings = {
        line for statement in _docstrings(tree) for line in range(statement.lineno, (statement.end_lineno or 0) + 1)
    }
    lines = document.text.split("\n")  # as the parser counts them; a form feed ends none
    yield document.name, "\n".join(line for number, line in enumerate(lines, 1) if number not in docstrings)


def prose(document: TextDocument) -> NamedTexts:
    """The docstrings of a source, a line between them; a help topic as it is."""
    if document.name.startswith("topics/"):
        yield document.name, document.text
        return
    tree = _parsed(document)
    held = [] if tree is None else [ast.literal_eval(statement.value) for statement in _docstrings(tree)]
    dedented = ("\n".join(line.strip() for line in text.strip().splitlines()) for text in held)
    yield document.name, "".join(f"{text}\n\n" for text in dedented)


def chat(document: TextDocument) -> NamedTexts:
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


PARTS: Mapping[str, Callable[[TextDocument], NamedTexts]] = {"code": code, "prose": prose, "chat": chat}


def _parsed(document: TextDocument) -> ast.Module | None:
    if document.name.startswith("topics/"):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # about odd escapes in other people's sources
            return ast.parse(document.text.lstrip("\ufeff"))
    except (SyntaxError, ValueError, RecursionError):
        return None


def _docstrings(tree: ast.Module) -> list[ast.Expr]:
    docstrings = []
    for node in ast.walk(tree):
        body = node.body if isinstance(node, ast.Module | ast.ClassDef | Definition) else []
        first = body[0] if body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            docstrings.append(first)
    return sorted(docstrings, key=lambda statement: statement.lineno)
