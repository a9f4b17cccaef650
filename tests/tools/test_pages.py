"""The pages that are made from code are those in `docs/`."""

from __future__ import annotations

from inspect import isabstract

import pytest

from sinkscope import measurement
from sinkscope.measurement import GradientNorms, Observer, every
from tests.families.sweep import attaching, table
from tools.pages import DOCS, costs, observers, zoo


@pytest.mark.parametrize("tool", [zoo, observers, costs], ids=lambda tool: tool.__name__)
def test_a_page_is_what_the_code_says(tool) -> None:
    for name, text in tool.pages().items():
        assert (DOCS / name).read_text(encoding="utf-8") == text, f"write it again: python -m {tool.__name__}"


def test_every_public_observer_has_a_section_and_those_outside_all_are_named() -> None:
    public = [value for name in measurement.__all__ if isinstance(value := getattr(measurement, name), type)]
    kinds = {kind for kind in public if issubclass(kind, Observer) and not isabstract(kind)} | {GradientNorms}
    text = observers.pages()["observers.md"]
    titles = {line.split()[1] for line in text.splitlines() if line.startswith("## ")}
    assert {kind.__name__ for kind in kinds} <= titles
    on_request = {kind.__name__ for kind in kinds} - {type(each).__name__ for each in every()} - {"GradientNorms"}
    assert all(f'## {name} (not in "all")\n' in text for name in on_request)


def test_the_page_of_families_ends_in_what_the_sweep_wrote() -> None:
    page = (DOCS / "families.md").read_text(encoding="utf-8")
    assert page.endswith(f"{attaching.section()}\n{table.section()}")
