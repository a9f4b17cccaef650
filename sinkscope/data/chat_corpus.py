"""The corpus `chat:GLOB`: conversations of the user's own, one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from sinkscope.data.conversations import rendered
from sinkscope.data.corpus import Corpus, Entry
from sinkscope.data.reading import read_text
from sinkscope.data.text_corpus import files_of
from sinkscope.errors import InputError


def load_chat(pattern: str) -> Corpus:
    """The conversations in the JSONL files that match: `{"messages": [{"role": "user", "content": ...}, ...]}`.

    A document is one conversation (file and line), rendered as `conversations.TEMPLATE` says. Raises `InputError`, with
    file and line, for what is not of that form.
    """
    root, files = files_of(pattern)
    entries = [entry for path in files for entry in _conversations(path, path.relative_to(root).as_posix())]
    return Corpus(name=f"chat:{Path(pattern).name}", entries=tuple(entries), chat=True)


def _conversations(path: Path, name: str) -> Iterator[Entry]:
    for number, line in enumerate(read_text(path).split("\n"), start=1):  # strings may hold other line ends
        if line.strip():
            text = _rendered(line, f"{path}, line {number}")
            yield Entry(f"{name}#{number:06d}", partial(str, text))


def _rendered(line: str, where: str) -> str:
    try:
        messages: Any = json.loads(line)["messages"]
        return rendered(messages)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        told = str(error) if isinstance(error, InputError) else 'expected {"messages": [{"role", "content"}, ...]}'
        raise InputError(f"{where}: {told}") from error
