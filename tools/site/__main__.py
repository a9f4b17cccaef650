"""`python -m tools.site [FOLDER]`: build the documentation, without a network, into `build/site` or a folder.

Warnings are errors, links that lead nowhere among them. It needs the extra `docs`.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from tools.pages import ROOT
from tools.site.sources import gather


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


if __name__ == "__main__":
    given = sys.argv[1:]
    if len(given) > 1 or any(name.startswith("-") for name in given):
        raise SystemExit(__doc__)
    sys.exit(build(Path(given[0]) if given else ROOT / "build" / "site"))
