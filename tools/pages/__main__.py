"""`python -m tools.pages [--check]`: fill the pages' marked blocks and sentences from stored results and from code.

With --check it writes nothing, names what is out of date, and exits with 1 where anything is. Words of a sentence that
no page has, or that it has twice, are named too, and end with 1 in either case.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from sinkscope.files import write_text
from tools.pages import ROOT, code, filled, measured, results
from tools.pages.sentences import SENTENCES, said

BLOCKS: dict[str, dict[str, Callable[[], str]]] = {}
for source in (results, measured, code):
    for where, made in source.BLOCKS.items():
        BLOCKS.setdefault(where, {}).update(made)
if (ROOT / "replication" / "README.md").is_file():
    from sinkscope_replication import table

    BLOCKS["replication/README.md"] = {"counts": table.counts, "table": table.table}


def main(arguments: Sequence[str]) -> int:
    """Fill the blocks, or compare them; the exit code."""
    if set(arguments) - {"--check"}:
        raise SystemExit(__doc__)
    stale, lost = [], []
    for page in dict.fromkeys([*BLOCKS, *SENTENCES]):
        text = (ROOT / page).read_text(encoding="utf-8")
        try:
            sentences = SENTENCES.get(page, list)()
        except ValueError as error:
            lost.append(f"{page}: {error}")
            sentences = []
        for sentence in sentences:
            try:
                old, text = text, said(text, sentence)
            except ValueError as error:
                lost.append(f"{page}: {error}")
                continue
            if text != old:
                stale.append(f"{page}: {sentence}")
        for name, block in BLOCKS.get(page, {}).items():
            old, text = text, filled(text, name, block())
            if text != old:
                stale.append(f"{page}: {name}")
        if not arguments:
            write_text(ROOT / page, text)
    for each in stale:
        print(f"{each} is out of date: run make pages" if arguments else each)
    for each in lost:
        print(each)
    return int(bool(lost or (arguments and stale)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
