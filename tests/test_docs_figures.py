"""The figures of the documentation: each one shown, described, and small enough to be read over a slow line."""

from __future__ import annotations

import re

import pytest

from tests.test_docs import PAGES, ROOT

IMAGE = re.compile(r"!\[(.*?)\]\((.*?)\)", re.DOTALL)
FIGURES = sorted((ROOT / "docs" / "figures").glob("*.png"))
SHOWN = [
    (page, text, page.parent / target)
    for page in PAGES
    if page.stem != "findings"  # made from the records, with their figures: tests/report/experiments
    for text, target in IMAGE.findall(page.read_text(encoding="utf-8"))
]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)#]+?)(?:#[^)]*)?\)")
QUESTIONS = ("does_my_model_have_a_sink", "which_tokens", "by_which_mechanism", "does_it_matter")


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_has_a_command_a_figure_and_how_to_read_it(name):
    page = (ROOT / "docs" / f"{name}.md").read_text("utf-8")
    assert "```bash\nsinkscope " in page
    assert "```python\n" in page
    assert IMAGE.search(page)
    assert "\n## How to read it\n" in page


def test_every_figure_is_shown_and_every_shown_figure_exists():
    shown = {path.resolve() for _, _, path in SHOWN}
    assert {path for path in shown if not path.is_file()} == set()
    assert {path.resolve() for path in FIGURES} - shown == set()


@pytest.mark.parametrize("path", FIGURES, ids=lambda path: path.stem)
def test_a_figure_is_a_small_png(path):
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) < 150_000


def test_a_figure_says_in_words_what_it_shows():
    assert all(len(text.split()) >= 10 for _, text, _ in SHOWN)


def test_links_between_pages_lead_somewhere():
    found = [(page, target) for page in PAGES for target in LINK.findall(page.read_text("utf-8"))]
    own = [(page, target) for page, target in found if "://" not in target]
    if not (ROOT / "replication").is_dir():  # as where the instrument is tried alone
        own = [(page, target) for page, target in own if not target.startswith("replication/")]
    broken = [(page.name, target) for page, target in own if not (page.parent / target).exists()]
    assert not broken
