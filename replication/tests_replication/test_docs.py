"""The snippets of the study's pages run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from sinkscope.cli import main
from tests.test_docs import LASTING, blocks

FOLDER = Path(__file__).parents[1]
PAGES = [FOLDER / "README.md", *sorted((FOLDER / "docs").glob("*.md"))]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)#]+?)(?:#[^)]*)?\)")


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [pytest.param(each, marks=pytest.mark.release if each.stem == "synthetic_tasks" else ()) for each in PAGES],
    ids=lambda page: page.stem,
)
def test_snippets_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "snippet"}
    for kind, code in blocks(page):
        if kind == "python":
            exec(compile(code, page.name, "exec", dont_inherit=True), names)
        elif kind == "bash":
            for line in code.splitlines():
                if line.startswith("sinkscope") and not LASTING.search(line) and "replication/" not in line:
                    assert main(shlex.split(line, comments=True)[1:]) == 0, line


def test_links_lead_somewhere():
    found = [(page, target) for page in PAGES for target in LINK.findall(page.read_text(encoding="utf-8"))]
    own = [(page, target) for page, target in found if "://" not in target]
    broken = [(page.name, target) for page, target in own if not (page.parent / target).exists()]
    assert broken == []
