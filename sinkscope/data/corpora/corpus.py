"""Corpora: ordered documents of text, read one at a time, and which of them are for validation."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sinkscope.errors import InputError


@dataclass(frozen=True)
class TextDocument:
    """A text and its name: relative to the corpus, unique in it, the same on every machine."""

    name: str
    text: str


@dataclass(frozen=True)
class CorpusEntry:
    """A document that was not read yet. `read` gives its text, or "" where there turns out to be none."""

    name: str
    read: Callable[[], str]


@dataclass(frozen=True)
class Corpus:
    """Documents in a stable order.

    `name` is the portable form of the corpus's name, without absolute paths; `versions` are the versions of the
    software that the text itself comes from; `truncated` tells that a limit on the characters cut the corpus short.
    In a corpus of conversations (`chat`) every document is one, rendered as `conversations.TEMPLATE` says.
    """

    name: str
    entries: tuple[CorpusEntry, ...]
    versions: Mapping[str, str] = field(default_factory=dict)
    truncated: bool = False
    chat: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all documents, in order; nothing is read for it."""
        return tuple(entry.name for entry in self.entries)

    def domains(self) -> dict[str, Corpus]:
        """What lies in each folder at the top, by the folder's name: `torch` holds `torch/nn/functional.py`."""
        held: dict[str, list[CorpusEntry]] = {}
        for entry in self.entries:
            domain, slash, _ = entry.name.partition("/")
            if slash:
                held.setdefault(domain, []).append(entry)
        return {
            domain: replace(self, name=f"{self.name}, {domain}", entries=tuple(entries))
            for domain, entries in sorted(held.items())
        }

    def documents(self, names: Collection[str] | None = None) -> Iterator[TextDocument]:
        """Read the documents, or those named, one after the other in the corpus's order; empty ones are left out."""
        chosen = None if names is None else set(names)
        for entry in self.entries:
            if chosen is None or entry.name in chosen:
                text = entry.read()
                if text.strip():
                    yield TextDocument(entry.name, text)


class TextDigest:
    """sha256 over names and texts, with the counts that a fingerprint also holds.

    `contents`: the sha256 of each document's text alone, by name, which finds the same text in another corpus.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.documents = 0
        self.characters = 0
        self.contents: dict[str, bytes] = {}

    def add(self, document: TextDocument) -> None:
        """Take in a document. Lengths come first, so that no two sequences of documents give the same bytes."""
        name, text = document.name.encode(), document.text.encode()
        self._hash.update(b"%d %d\n" % (len(name), len(text)))
        self._hash.update(name)
        self._hash.update(text)
        self.documents += 1
        self.characters += len(document.text)
        self.contents[document.name] = hashlib.sha256(text).digest()

    def hexdigest(self) -> str:
        """sha256 so far."""
        return self._hash.hexdigest()


def digest(corpus: Corpus) -> TextDigest:
    """Read the whole corpus once for its sha256 and counts."""
    total = TextDigest()
    for document in corpus.documents():
        total.add(document)
    return total


@dataclass(frozen=True)
class CorpusSplit:
    """Names of the documents of each part, in the corpus's order."""

    train: tuple[str, ...]
    validation: tuple[str, ...]

    def training_without(self, held: Callable[[str], bool]) -> CorpusSplit:
        """The same split, whose training lacks the documents that are `held` back for another one's validation."""
        return replace(self, train=tuple(name for name in self.train if not held(name)))


def shuffled(names: Iterable[str], seed: int) -> list[str]:
    """Names in an order that only the names and the seed decide: that of sha256(seed, name)."""
    return sorted(names, key=lambda name: hashlib.sha256(f"{seed}\n{name}".encode()).digest())


def split_names(names: Sequence[str], share: float, seed: int) -> CorpusSplit:
    """Give `share` of the documents, at least one and not all, to validation: the first ones of `shuffled`.

    Raises `InputError` for fewer than two documents, since the parts share none.
    """
    if len(names) < 2:
        raise InputError(f"the corpus has {len(names)} document(s); training and validation need at least one each")
    count = min(max(round(share * len(names)), 1), len(names) - 1)
    chosen = set(shuffled(names, seed)[:count])
    return CorpusSplit(
        train=tuple(name for name in names if name not in chosen),
        validation=tuple(name for name in names if name in chosen),
    )


def read_bytes(path: Path, start: int = 0, stop: int | None = None) -> bytes:
    """The bytes [start, stop) of a file. `InputError` if it cannot be read."""
    try:
        with path.open("rb") as stream:
            stream.seek(start)
            return stream.read(-1 if stop is None else stop - start)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error


def read_text(path: Path, start: int = 0, stop: int | None = None) -> str:
    """The UTF-8 text of a file, or of its bytes [start, stop). `InputError` if it is not text.

    A NUL byte decodes, but no text holds one: UTF-16 and many binary files are recognized by it.
    """
    raw = read_bytes(path, start, stop)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text: invalid UTF-8 at byte {start + error.start}") from error
    if "\0" in text:
        raise InputError(f"{path} is not text: NUL byte at {start + raw.index(0)}")
    return text
