"""`python -m tools.site [FOLDER]`: build the documentation, without a network, into `build/site` or a folder.

Warnings are errors, links that lead nowhere among them. It needs the extra `docs`.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from sinkscope.files import write_text
from tools.pages import DOCS, ROOT, filled
from tools.pages.site import BLOCKS
from tools.site.api import api_pages

HOUSE = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}
STUDY = "replication/docs/build.py"  # where the folder is there
CONTENTS = """```{toctree}
:caption: The replication of Gu et al. 2025
:hidden:
:glob:

replication/*
```
"""


def build(out: Path) -> int:
    """Build into `out`, in place of what an earlier call left there; 0 where all is well."""
    from sphinx.cmd.build import build_main

    with tempfile.TemporaryDirectory() as temporary:
        source, made = Path(temporary) / "source", Path(temporary) / "site"
        gather(source)
        options = ["-W", "--keep-going", "-q", "-b", "html", "-d", str(Path(temporary) / "doctrees")]
        if code := build_main([*options, str(source), str(made)]):
            return int(code)
        if (out / "objects.inv").is_file():
            shutil.rmtree(out)
        shutil.copytree(made, out)
    print(f"{out / 'index.html'}: {len(list(out.rglob('*.html')))} pages")
    return 0


def gather(folder: Path) -> None:
    """Write what Sphinx reads into a folder that is not there yet: pages, tutorials, names, the study's pages."""
    shutil.copytree(DOCS, folder)
    for name, page in HOUSE.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        write_text(folder / page, text.replace("](docs/", "]("))
    logging.disable(logging.WARNING)  # of tiny models, whose configurations are no real ones
    for page, blocks in BLOCKS.items():
        path = folder / Path(page).name
        text = path.read_text(encoding="utf-8")
        for name, block in blocks.items():
            text = filled(text, name, block())
        write_text(path, text)
    logging.disable(logging.NOTSET)
    for path in (ROOT / "examples").glob("*.ipynb"):
        write_text(folder / "tutorials" / path.name, path.read_text(encoding="utf-8").replace("](../docs/", "](../"))
    for name, text in api_pages().items():
        write_text(folder / "api" / name, text)
    if (ROOT / STUDY).is_file():
        subprocess.run([sys.executable, ROOT / STUDY, folder / "replication"], check=True)
        index = folder / "index.md"
        write_text(index, f"{index.read_text(encoding='utf-8')}\n{CONTENTS}")


if __name__ == "__main__":
    given = sys.argv[1:]
    if len(given) > 1 or any(name.startswith("-") for name in given):
        raise SystemExit(__doc__)
    sys.exit(build(Path(given[0]) if given else ROOT / "build" / "site"))
