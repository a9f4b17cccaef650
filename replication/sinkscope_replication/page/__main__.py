"""`python -m sinkscope_replication.page FOLDER`: write the study's page and its figures into a folder."""

from __future__ import annotations

import sys
from pathlib import Path

from sinkscope.files import write_text
from sinkscope_replication.page.page import entries, pages

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for name, text in pages(entries()).items():
        write_text(Path(sys.argv[1]) / name, text)
