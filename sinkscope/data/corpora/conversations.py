"""Conversations as text, where in it the assistant speaks, and the corpus `chat:GLOB` (Gu et al. 2025, appendix E)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from sinkscope.data.corpora.corpus import Corpus, CorpusEntry, read_text
from sinkscope.data.corpora.text_files import files_of
from sinkscope.errors import InputError

ROLES = ("system", "user", "assistant")
HEAD = re.compile(r"<\|(system|user|assistant)\|>\n")

TEMPLATE = (
    "{bos}{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
"""The chat template of models tuned on conversations, in transformers' language; an EOS ends each conversation."""


def chat_template(bos: str | None) -> str:
    """`TEMPLATE` with a BOS in front where training puts one there."""
    return TEMPLATE.replace("{bos}", "{{ bos_token }}" if bos else "")


def rendered(messages: Iterable[Mapping[str, Any]]) -> str:
    """A conversation as `TEMPLATE` writes it, without BOS: `<|user|>`, a line end, what is said, a line end.

    Raises `InputError` for messages of another form, unknown roles, and text that spells a role's head itself, which
    could not be told from one.
    """
    parts = []
    for message in messages:
        role, content = message.get("role"), message.get("content")
        if role not in ROLES or not isinstance(content, str):
            raise InputError(f"a message needs a role ({', '.join(ROLES)}) and its content as text")
        if HEAD.search(content):
            raise InputError("a message's text spells the head of a message, such as <|user|>")
        parts.append(f"<|{role}|>\n{content}\n")
    if not parts:
        raise InputError("a conversation without messages")
    return "".join(parts)


def responses(text: str) -> list[tuple[int, int]]:
    """Where the assistant speaks in a rendered conversation: [start, stop) of each response, in characters."""
    heads = list(HEAD.finditer(text))
    stops = [head.start() for head in heads[1:]] + [len(text)]
    return [(head.end(), stop) for head, stop in zip(heads, stops, strict=True) if head[1] == "assistant"]


def load_chat(pattern: str) -> Corpus:
    """The conversations in the JSONL files that match: `{"messages": [{"role": "user", "content": ...}, ...]}`.

    A document is one conversation (file and line), rendered as `TEMPLATE` says. Raises `InputError`, with
    file and line, for what is not of that form.
    """
    root, files = files_of(pattern)
    entries = [entry for path in files for entry in _conversations(path, path.relative_to(root).as_posix())]
    return Corpus(name=f"chat:{Path(pattern).name}", entries=tuple(entries), chat=True)


def _conversations(path: Path, name: str) -> Iterator[CorpusEntry]:
    for number, line in enumerate(read_text(path).split("\n"), start=1):  # strings may hold other line ends
        if not line.strip():
            continue
        try:
            text = rendered(json.loads(line)["messages"])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            form = 'expected {"messages": [{"role", "content"}, ...]}'
            reason = str(error) if isinstance(error, InputError) else form
            raise InputError(f"{path}, line {number}: {reason}") from error
        yield CorpusEntry(f"{name}#{number:06d}", partial(str, text))
