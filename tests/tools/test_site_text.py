"""Docstrings as reStructuredText: code stays code, everything else stays what it says."""

from __future__ import annotations

import pytest

from tools.site.text import escaped, restructured


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a `x` b", "a ``x`` b"),
        ("`x`s and no`x`", "``x``\\ s and no\\ ``x``"),
        ("Sink_k^eps, |a| > 2 * b", "Sink\\_k^eps, \\|a\\| > 2 \\* b"),
        ("`a_b * |c|`.", "``a_b * |c|``."),
        ("over `two\nlines` here", "over ``two lines`` here"),
        ("an odd ` alone", "an odd \\` alone"),
        ("A. Author wrote", "\\A. Author wrote"),
        ("(1) first", "\\(1) first"),
        ("+ 2 bytes", "\\+ 2 bytes"),
    ],
)
def test_text_is_escaped_outside_of_code(text: str, wanted: str) -> None:
    assert escaped(text) == wanted


def test_lists_and_formulas_stand_apart() -> None:
    lines = ["Sums:", "- `a`: one", "  and on", "- b", "After it.", "", "    x = y_z", "", "Term:", "    y = 1", "End."]
    assert restructured(lines) == [
        "Sums:",
        "",
        "- ``a``: one",
        "  and on",
        "",
        "- b",
        "",
        "After it.",
        "",
        "::",
        "",
        "    x = y_z",
        "",
        "Term:",
        "",
        "::",
        "",
        "    y = 1",
        "",
        "End.",
    ]


def test_a_line_that_hangs_below_a_term_goes_on_in_its_paragraph() -> None:
    assert restructured(["`a`: one", "    and on", "then"]) == ["``a``: one", "and on", "then"]


def test_arguments_keep_their_indentation_which_napoleon_reads() -> None:
    lines = ["Sum it.", "", "Args:", "    q_norm: a `x` of |a|, with", "        more.", "    b: two.", "After it."]
    assert restructured(lines) == [
        *("Sum it.", "", "Args:", "    q\\_norm: a ``x`` of \\|a\\|, with", "        more.", "    b: two.", ""),
        "After it.",
    ]
