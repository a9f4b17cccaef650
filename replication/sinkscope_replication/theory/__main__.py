"""`python -m sinkscope_replication.theory [FOLDER]`: check closed forms and identities on lab models.

Prints what holds; into a folder it writes the table, the verdicts and a page of figures. Exits with 1 if a claim does
not hold.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sinkscope.files import check_writable, write_json, write_text
from sinkscope.report.page import write_page
from sinkscope.report.terminal import plain, show, table
from sinkscope.statistics.claims import cells, markdown, tally
from sinkscope.training import versions
from sinkscope_replication.theory import by_topic, failing, sinks_by_length, spread_by_depth
from sinkscope_replication.theory.page import theory_page

TABLE, VERDICTS, PAGE = "table.md", "verdicts.json", "figure.html"
FAILED = 1
SHOWN = ("claim", "statement", "asked", "found", "grade")


def main(arguments: list[str]) -> int:
    """Check everything, print it, write it into the folder if one is named; the exit code."""
    folder = Path(arguments[0]) if arguments else None
    if folder is not None:
        check_writable(folder)
    verdicts = by_topic()
    every = [verdict for group in verdicts.values() for verdict in group]
    for topic, group in verdicts.items():
        show(plain(f"\n{topic}"))
        show(table(SHOWN, [cells(verdict, *SHOWN) for verdict in group], numbers_from=len(SHOWN)))
    show(plain(f"\n{tally(every)}"))
    if folder is not None:
        write_text(folder / TABLE, markdown(every) + "\n")
        write_json(folder / VERDICTS, [verdict.to_dict() for verdict in every])
        write_page(theory_page(verdicts, sinks_by_length(), spread_by_depth(), versions()), folder / PAGE)
    return FAILED if failing(every) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
