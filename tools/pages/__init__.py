"""Where pages go: each module here makes some of `docs/`, and writes them when it is run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sinkscope.files import write_text

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def write(pages: Mapping[str, str], docs: Path = DOCS) -> None:
    """Write pages by their names below `docs`, each whole or absent, and print where they are."""
    for name, text in pages.items():
        write_text(docs / name, text)
        print(docs / name)


def above(name: str, mark: str) -> str:
    """What people wrote in a page above the line `mark`, from where on it is made. Raises `ValueError` without it."""
    text = (DOCS / name).read_text(encoding="utf-8")
    return text[: text.index(f"\n{mark}\n") + 1]


def between(text: str, block: str, made: str) -> str:
    """`text` with `made` between `<!-- block -->` and `<!-- end of block -->`. Raises `ValueError` without these."""
    begin, end = f"<!-- {block} -->\n", f"<!-- end of {block} -->"
    start = text.index(begin) + len(begin)
    return f"{text[:start]}\n{made}\n\n{text[text.index(end, start) :]}"
