"""The pages that are made from code are those in `docs/`."""

from __future__ import annotations

import pytest

from tests.families.sweep import attaching, table
from tools.pages import DOCS, costs, observers, zoo


@pytest.mark.parametrize("tool", [zoo, observers, costs], ids=lambda tool: tool.__name__)
def test_a_page_is_what_the_code_says(tool) -> None:
    for name, text in tool.pages().items():
        assert (DOCS / name).read_text(encoding="utf-8") == text, f"write it again: python -m {tool.__name__}"


def test_the_page_of_families_ends_in_what_the_sweep_wrote() -> None:
    page = (DOCS / "families.md").read_text(encoding="utf-8")
    assert page.endswith(f"{attaching.section()}\n{table.section()}")
