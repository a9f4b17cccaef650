"""`python -m tools.pages.findings [RESULTS [DOCS]]`: write `docs/findings.md` and its figures from the records.

Without arguments it also writes the first rows into the README, between its two marks.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sinkscope.experiments import SHIPPED
from sinkscope.files import write_text
from tools.pages import DOCS, write
from tools.pages.findings.page import README, entries, notes, pages, readme

if __name__ == "__main__":
    folders = [Path(argument) for argument in sys.argv[1:3]]
    results, docs = (*folders, *(SHIPPED, DOCS)[len(folders) :])
    made = entries(results)
    write(pages(made, notes(results)), docs)
    if not folders:
        write_text(README, readme(made, README.read_text(encoding="utf-8")))
        print(README)
