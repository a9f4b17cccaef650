"""Links inside the site: those that lead nowhere are found, each with its page."""

from __future__ import annotations

from pathlib import Path

from tools.site.links import broken
from tools.site.sources import marked

GOOD = '<h1 id="top">One</h1><a href="two.html#there">x</a><a href="#top">y</a><a href="https://example.org/#z">z</a>'


def site(folder: Path, one: str) -> Path:
    (folder / "sub").mkdir()
    (folder / "one.html").write_text(one)
    (folder / "two.html").write_text('<p id="there"></p><img src="sub/my%20picture.png"><a href="sub/">up</a>')
    (folder / "sub" / "my picture.png").write_text("")
    return folder


def test_a_site_whose_links_lead_somewhere_is_whole(tmp_path: Path) -> None:
    assert broken(site(tmp_path, GOOD)) == []


def test_a_missing_page_and_a_missing_place_are_found(tmp_path: Path) -> None:
    planted = (
        f'{GOOD}<a href="three.html">a</a><a href="two.html#nowhere">b</a><img src="sub/none.png"><a href="#no">c</a>'
    )
    assert broken(site(tmp_path, planted)) == [
        "one.html: three.html: no such file",
        "one.html: two.html#nowhere: no such place in two.html",
        "one.html: sub/none.png: no such file",
        "one.html: #no: no such place in one.html",
    ]


def test_places_that_html_names_are_named_as_sphinx_wants_it() -> None:
    one, two = Path("one.md"), Path("two.md")
    text = marked({one: '<a id="nano-x"></a>\n\n## X', two: "[a](one.md#nano-x) [b](one.md#heading) [c](#nano-x)"})
    assert text[one] == "(nano-x)=\n\n## X"
    assert text[two] == "[a](#nano-x) [b](one.md#heading) [c](#nano-x)"
