"""The whole site, built as `make docs` builds it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tools.pages import ROOT
from tools.site.links import parsed
from tools.site.names import explained

pytestmark = pytest.mark.release


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sphinx", reason="Sphinx is not installed (extra `docs`)")
    pytest.importorskip("furo", reason="furo is not installed (extra `docs`)")
    out = tmp_path_factory.mktemp("site") / "html"
    # In a process of its own, whose warnings are what Sphinx says of the pages: those of its code are not ours.
    done = subprocess.run(
        [sys.executable, "-m", "tools.site", str(out)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_the_site_says_every_public_name_once_and_links_the_sources_everywhere(built: Path) -> None:
    pages = sorted(built.rglob("*.html"))
    assert len(pages) > 40
    places = Counter(name for path in pages for name in parsed(path).ids)
    names = [each.full for own, _ in explained().values() for each in own]
    assert len(names) > 200
    assert {name: places[name] for name in names if places[name] != 1} == {}
    for path in pages:
        assert any(target.split("#")[0].endswith("bibliography.html") for target in parsed(path).targets) or (
            path.name == "bibliography.html"
        ), path
    assert (built / "searchindex.js").stat().st_size > 100_000


def test_nothing_is_loaded_from_elsewhere(built: Path) -> None:
    for path in built.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert re.findall(r"""<(?:script|img|iframe|link rel="stylesheet")[^>]*(?:src|href)=["']?https?:""", text) == []


def test_every_tutorial_has_a_page(built: Path) -> None:
    from tools.site.notebooks import notebooks

    assert [path.stem for path in notebooks()] == [path.stem for path in sorted((built / "tutorials").glob("*.html"))]
