"""The page of the zoo is what the catalog says, names every piece, and only what exists."""

from __future__ import annotations

import re
from typing import get_args, get_type_hints

import pytest

from sinkscope import attention as zoo
from sinkscope.attention.catalog import ENTRIES, SECTIONS
from sinkscope.model import LabConfig
from tools.pages.zoo import pages, refusal
from tools.pages.zoo_text import REFUSED

PAGE = pages()["zoo.md"]


def rows(start: str, stop: str = "\n## ") -> dict[str, list[str]]:
    """The table that follows `start`, by its first column without backticks."""
    text = PAGE.split(start, 1)[1].split(stop, 1)[0]
    lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("| `")]
    return {line[0].strip(" `"): [cell.strip() for cell in line[1:]] for line in lines}


def test_every_operation_has_a_row_in_its_section() -> None:
    for section in SECTIONS:
        found = rows(f"\n## {section.title}\n")
        assert list(found) == list(section.entries)
        assert all(len(cells) == 9 and all(cells) for cells in found.values())
        for name, cells in found.items():
            assert cells[4] == ENTRIES[name].spec.metric_weights
            assert all(f"`{option}={default}`" in cells[3] for option, default in ENTRIES[name].options.items())


def test_every_field_and_piece_of_a_spec_is_named() -> None:
    found = rows("## How pieces combine")
    hints = get_type_hints(zoo.AttentionSpec)
    assert set(found) == set(hints)
    for field, hint in hints.items():
        for kind in kinds(hint):
            named = f"`{kind.__name__}`" in found[field][0]
            assert named or kind.__name__ in ("And", "Or", *OF_OTHERS), (field, kind)


# What other packages derive their pieces from: no piece itself.
OF_OTHERS = ("Similarity", "Normalizer", "Slot", "Output", "Combinable")


def kinds(hint: object) -> list[type]:
    inner = [part for part in get_args(hint) if part not in (Ellipsis, type(None))]
    return [kind for part in inner for kind in kinds(part)] if inner else [hint] if isinstance(hint, type) else []


@pytest.mark.parametrize("pieces", REFUSED, ids=str)
def test_what_is_called_refused_is_refused(pieces: dict) -> None:
    assert f"- {refusal(pieces)}" in PAGE


def test_no_reason_is_given_for_what_is_an_operation() -> None:
    with pytest.raises(AssertionError, match="is an operation"):
        refusal({})


def test_every_choice_of_a_model_exists() -> None:
    found = rows("## What else a model can vary")
    fields = set(LabConfig.__annotations__)
    assert set(found) <= fields
    for field, (cell,) in found.items():
        choices, _, with_fields = cell.partition(" (with")
        for choice in re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", cell)) if field != "is_causal" else ():
            if choice not in fields:
                assert getattr(LabConfig(**{field: choice}), field) == choice
        assert set(re.findall(r"`(\w+)`", with_fields.partition(")")[0])) <= fields, choices
    assert LabConfig(is_causal=False, sink_tokens=2, attention_every=2, residual_gain=0.5).sink_tokens == 2
