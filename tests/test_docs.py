"""Every snippet of the documentation runs: Python blocks of a page in order, commands as a user types them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from sinkscope.cli import main
from tests.registering import forgetting

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LONG = {"encoder_and_hybrid", "which_tokens", "does_it_matter", "many_models", "by_which_mechanism"}
LONG |= {"calibration", "does_my_model_have_a_sink", "which_policy", "quantized_linear"}
LONG |= {"what_to_protect", "rotated_caches", "fold", "origin", "reading_the_report", "run_it_on_a_cluster"}
LINK = re.compile(r"\]\(([^)#]+?)(?:#[^)]*)?\)")
FOLDERS, ENDINGS = "benchmarks|replication|results|sinkscope|tests|tools", "py|json|jsonl|yaml|md"
FILE = re.compile(rf"`((?:{FOLDERS})/[\w/.-]*(?:/|\.(?:{ENDINGS})))`")
PATH = re.compile(rf"`([\w/.-]*(?:/|\w\.(?:{ENDINGS})))`")  # in CONTRIBUTING.md, also within the package
LASTING = re.compile(r"#.*\bminutes\b")  # said in the comment behind a command
INSTALLING = ("make ", "pip ", "python -m venv", "git ", "cd ")


def blocks(page: Path) -> list[tuple[str, str]]:
    return BLOCK.findall(page.read_text(encoding="utf-8"))


def test_links_between_pages_lead_somewhere():
    links = [
        (page, target) for page in PAGES for target in LINK.findall(page.read_text("utf-8")) if "://" not in target
    ]
    if not (ROOT / "replication").is_dir():
        links = [(page, target) for page, target in links if not target.startswith("replication/")]
    assert [(page.name, target) for page, target in links if not (page.parent / target).exists()] == []


def test_files_that_pages_name_exist():
    named = [(page, path) for page in PAGES for path in FILE.findall(page.read_text("utf-8"))]
    if not (ROOT / "replication").is_dir():
        named = [(page, path) for page, path in named if not path.startswith("replication/")]
    assert len(named) > 40
    assert [(page.name, path) for page, path in named if not (ROOT / path).exists()] == []


def test_files_that_contributing_names_exist():
    named = PATH.findall((ROOT / "CONTRIBUTING.md").read_text("utf-8"))
    if not (ROOT / "replication").is_dir():
        named = [path for path in named if "replication" not in path]
    assert len(named) > 50
    places = (ROOT, ROOT / "replication")
    known = [p for p in named if any((place / p).exists() for place in places) or any((ROOT / "sinkscope").rglob(p))]
    assert [path for path in named if path not in known] == []


def test_contributing_lists_every_tool():
    listed = set(re.findall(r"python -m tools\.([\w.]+)", (ROOT / "CONTRIBUTING.md").read_text("utf-8")))
    files = [*(ROOT / "tools").glob("*.py"), *(ROOT / "tools" / "pages").glob("*.py")]
    runnable = [path for path in files if "__main__" in path.read_text("utf-8")]
    assert len(runnable) > 8
    tools = {".".join(path.relative_to(ROOT / "tools").with_suffix("").parts) for path in runnable}
    tools = {name.removesuffix(".__main__") for name in tools}
    assert tools - listed == set()


def pages() -> list:
    """Pages with snippets, except the README, which tests/real runs; those that take longest are for releases."""
    marks = {page: pytest.mark.release if page.stem in LONG else () for page in PAGES}
    return [pytest.param(page, marks=marks[page], id=page.stem) for page in PAGES[1:] if blocks(page)]


@pytest.mark.slow
@pytest.mark.parametrize("page", pages())
def test_snippets_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "snippet"}
    with forgetting():
        for kind, code in blocks(page):
            if kind == "python":
                exec(compile(code, page.name, "exec", dont_inherit=True), names)
            elif kind == "bash":
                for line in code.splitlines():
                    run(line)


def run(line: str) -> None:
    """One command line of ours; what installs or trains for minutes is run by `make`, not here."""
    if not line.strip() or line.startswith(("#", *INSTALLING)) or LASTING.search(line):
        return
    words = shlex.split(line, comments=True)
    assert words[0] == "sinkscope", line
    assert main(words[1:]) == 0, line
