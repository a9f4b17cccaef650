"""`python replication/docs/build.py FOLDER`: write the study's pages, for the site of the documentation.

The README, the pages of this folder, and the table of the theory.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from sinkscope.files import write_text
from sinkscope.statistics.claims import markdown, tally
from sinkscope_replication.theory import by_topic

HERE = Path(__file__).parent


def build(folder: Path) -> None:
    """Write all pages into a folder that is not there yet, links to `docs/` as they are beside it."""
    shutil.copytree(HERE, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    about = (HERE.parent / "README.md").read_text(encoding="utf-8").replace("](docs/", "](")
    about = about.replace("](../README.md)", "](../index.md)").replace("](../docs/", "](../")
    write_text(folder / "README.md", about)
    claims = (
        f"### {topic.capitalize()}\n\n{tally(group)}\n\n{markdown(group)}\n" for topic, group in by_topic().items()
    )
    theory = (folder / "theory.md").read_text(encoding="utf-8")
    write_text(folder / "theory.md", "\n".join([theory, "## The claims\n", *claims]))
    for page in folder.glob("*.md"):
        text = (
            page.read_text(encoding="utf-8").replace("](../../docs/", "](../").replace("](../README.md", "](README.md")
        )
        write_text(page, text)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    build(Path(sys.argv[1]))
