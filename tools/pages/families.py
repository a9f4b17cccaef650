"""`python -m tools.pages.families`: write the tables of `docs/families.md`, after measuring every family there is.

What the sweep over all model types found is taken from where `python -m tests.families.sweep.table` wrote it down.
"""

from __future__ import annotations

from tests.families import lab
from tests.families.contract import HEAD, table
from tests.families.sweep import attaching
from tests.families.sweep import table as sweep
from tools.pages import above, write

PAGE = "families.md"


def pages() -> dict[str, str]:
    """The page, its table made anew, with the lab model under every operation, and the sweep's below it."""
    return {PAGE: f"{above(PAGE, HEAD)}{table(lab.rows())}\n\n{attaching.section()}\n{sweep.section()}"}


if __name__ == "__main__":
    write(pages())
