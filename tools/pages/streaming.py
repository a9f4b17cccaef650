"""`python -m tools.pages.streaming`: write the table of `docs/streaming_families.md`, after streaming every family."""

from __future__ import annotations

import logging

from tests.caches.contract import HEAD, table
from tools.pages import above, write

PAGE = "streaming_families.md"


def pages() -> dict[str, str]:
    """The page, its table made anew."""
    return {PAGE: f"{above(PAGE, HEAD)}{table()}\n"}


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # of layers that are left alone: the table says it
    write(pages())
