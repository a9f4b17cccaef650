"""Sentences of pages whose numbers come from stored results, in a file per page.

A sentence stands on the page as it reads, without marks. It is found by its words, and its numbers are replaced.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules

NUMBER = re.compile(r"[−-]?\d+(?:,\d{3})*(?:\.\d+)?")


def said(text: str, sentence: str) -> str:
    """`text` with the numbers of `sentence` in the one place that has its words.

    Line breaks stay where they are. Raises `ValueError` where no place has its words, and where several have.
    """
    words = (NUMBER.sub("\0", word) for word in sentence.split())
    pattern = r"\s+".join(re.escape(word).replace("\0", f"({NUMBER.pattern})") for word in words)
    places = list(re.finditer(pattern, text))
    if len(places) != 1:
        raise ValueError(f"{len(places)} places of the page read: {sentence}")
    place, numbers = places[0], NUMBER.findall(sentence)
    for group in range(len(numbers), 0, -1):
        start, end = place.span(group)
        text = f"{text[:start]}{numbers[group - 1]}{text[end:]}"
    return text


def _pages() -> dict[str, Callable[[], list[str]]]:
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    return {module.PAGE: module.sentences for module in modules}


SENTENCES = _pages()
"""For each page, what returns its sentences."""
