"""Links between pages that name a place in HTML."""

from __future__ import annotations

from pathlib import Path

from tools.site.sources import marked


def test_places_that_html_names_are_named_as_sphinx_wants_it() -> None:
    one, two = Path("one.md"), Path("two.md")
    text = marked({one: '<a id="nano-x"></a>\n\n## X', two: "[a](one.md#nano-x) [b](one.md#heading) [c](#nano-x)"})
    assert text[one] == "(nano-x)=\n\n## X"
    assert text[two] == "[a](#nano-x) [b](one.md#heading) [c](#nano-x)"
