"""`python -m tools.families_page`: write the table of `docs/families.md`, after measuring every family there is."""

from __future__ import annotations

from tests.families import lab
from tests.families.contract import HEAD, table
from tools.pages import above, write

PAGE = "families.md"


def pages() -> dict[str, str]:
    """The page, its table made anew, with the lab model under every operation."""
    return {PAGE: f"{above(PAGE, HEAD)}{table(lab.rows())}\n"}


if __name__ == "__main__":
    write(pages())
