"""Docstrings, which are plain English with code between backticks, as reStructuredText."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

MARKUP = re.compile(r"`([^`]+)`|[\\*_|`]")
ARGUMENTS = "Args:"
LINK = "\\ "  # lets code touch a word
# What would begin a list or a directive.
COUNTED = re.compile(r"^(\s*)(\(?(?:[A-Za-z#]|\d+|[ivxlcdm]{2,5})[.)]|[+•‣⁃*]|\.\.|::?)(?=\s|$)", re.MULTILINE)
BULLET = re.compile(r"^- ")
OPENING = tuple(" \n([{<\"'-/:")
CLOSING = re.compile(r"[\s.,;:!?\-)\]}>/\"'’”…]|$")


def restructured(lines: Sequence[str]) -> list[str]:
    """The lines of a docstring, with all that would be markup escaped but code, lists and indented formulas.

    Lines that are indented by four spaces below a blank line, or below one that ends in a colon, are a formula or an
    example and stay as they are.
    """
    if ARGUMENTS in lines:  # napoleon makes a list of it, and it ends where the indentation does
        start = lines.index(ARGUMENTS)
        stop = next((n for n in range(start + 1, len(lines)) if lines[n][:1].strip()), len(lines))
        described = escaped("\n".join(lines[start + 1 : stop])).split("\n")
        return [*restructured(lines[:start]), "", ARGUMENTS, *described, "", *restructured(lines[stop:])]
    result: list[str] = []
    for kind, block in _blocks(lines):
        if result:
            result.append("")
        if kind == "literal":
            result += ["::", "", *block]
        else:
            result += escaped("\n".join(block)).split("\n")
    return result


def escaped(text: str) -> str:
    """Text whose only markup is code between backticks."""

    def shown(found: re.Match[str]) -> str:
        if found[1] is None:
            return f"\\{found[0]}"
        glued = found.start() > 0 and text[found.start() - 1] not in OPENING
        open_ended = CLOSING.match(text, found.end()) is None
        return f"{LINK * glued}``{' '.join(found[1].split())}``{LINK * open_ended}"

    return COUNTED.sub(r"\1\\\2", MARKUP.sub(shown, text))


def _blocks(lines: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Paragraphs, lists and literal blocks; each is parted from the next by a blank line in the result."""
    block: list[str] = []
    kind = "text"
    for line in [*lines, ""]:
        bare = line.strip()
        indent = len(line) - len(line.lstrip())
        after_colon = bool(block) and block[-1].rstrip().endswith(":") and kind == "text"
        deep = bare and indent >= 4 and kind != "item"
        next_kind = "item" if BULLET.match(line) else kind
        if deep and (kind == "literal" or not block or after_colon):
            next_kind = "literal"
        elif deep:
            line = bare  # a line that hangs below a term goes on in its paragraph
        elif bare and (kind == "literal" or (kind == "item" and indent == 0 and not BULLET.match(line))):
            next_kind = "text"
        if block and (not bare or next_kind != kind or BULLET.match(line)):
            yield kind, block
            block = []
        kind = next_kind if bare else "text"
        if bare:
            block.append(line.rstrip())
