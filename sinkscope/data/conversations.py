"""Conversations as text: the template of models that are tuned on them, and where in it the assistant speaks [C8]."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

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
    nobody could tell from one.
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
