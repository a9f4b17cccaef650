"""Marked blocks hold what results and code say, and the site's blocks have their place."""

from __future__ import annotations

from inspect import isabstract
from pathlib import Path

import pytest

from sinkscope import measurement
from tools.pages import ROOT, __main__, filled, site
from tools.pages.sentences import said


@pytest.fixture(autouse=True)
def alone() -> None:
    """Unlike other tests, the table of the replication sees its tasks."""


def test_no_block_is_out_of_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["--check"]) == 0, capsys.readouterr().out


def test_a_wrong_number_is_found_and_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(__main__, "ROOT", tmp_path)
    monkeypatch.setattr(__main__, "BLOCKS", {"a.md": {"one": lambda: "| 1 |", "two": lambda: "| 2 |"}})
    monkeypatch.setattr(__main__, "SENTENCES", {})
    page = tmp_path / "a.md"
    wrong = "Text\n<!-- one -->\n\n| 1 |\n\n<!-- end of one -->\n<!-- two -->\n\n| 3 |\n\n<!-- end of two -->\n"
    page.write_text(wrong)
    assert __main__.main(["--check"]) == 1
    assert capsys.readouterr().out == "a.md: two is out of date: run make pages\n"
    assert page.read_text() == wrong
    assert __main__.main([]) == 0
    assert page.read_text() == wrong.replace("3", "2")
    assert __main__.main(["--check"]) == 0
    page.write_text("no marks")
    with pytest.raises(ValueError, match="needs the lines <!-- one -->"):
        __main__.main([])


def test_numbers_of_a_sentence_are_replaced_where_its_words_stand() -> None:
    page = "It costs 0.1 nats.\nOn 1,200 texts it costs −0.25\nnats (−0.30 to 1) in 3 a8-tensor arms. It costs 7 dimes."
    assert said(page, "On 1,200 texts it costs −0.25 nats (−0.30 to 1) in 3 a8-tensor arms.") == page
    mended = said(page, "texts it costs 0.5 nats (0.4 to 12,000.5) in 4 a8-tensor arms")
    assert mended == page.replace("−0.25", "0.5").replace("−0.30 to 1)", "0.4 to 12,000.5)").replace("3 a8", "4 a8")
    with pytest.raises(ValueError, match="0 places of the page read: it takes 3"):
        said(page, "it takes 3")
    with pytest.raises(ValueError, match="2 places of the page read: It costs 3"):
        said(page, "It costs 3")


def test_a_sentence_of_other_numbers_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(__main__, "ROOT", tmp_path)
    monkeypatch.setattr(__main__, "BLOCKS", {})
    monkeypatch.setattr(__main__, "SENTENCES", {"a.md": lambda: ["costs 0.20 nats"]})
    page = tmp_path / "a.md"
    page.write_text("It costs 0.21\nnats.")
    assert __main__.main(["--check"]) == 1
    assert capsys.readouterr().out == "a.md: costs 0.20 nats is out of date: run make pages\n"
    assert __main__.main([]) == 0
    assert page.read_text() == "It costs 0.20\nnats."
    capsys.readouterr()
    page.write_text("It costs little.")
    for arguments in ([], ["--check"]):
        assert __main__.main(arguments) == 1
        assert capsys.readouterr().out == "a.md: 0 places of the page read: costs 0.20 nats\n"


def test_blocks_of_the_site_have_their_place() -> None:
    for page, blocks in site.BLOCKS.items():
        for block in blocks:
            assert "MADE" in filled((ROOT / page).read_text(encoding="utf-8"), block, "MADE")


def test_every_public_observer_has_a_section_and_those_outside_all_are_named() -> None:
    public = [value for name in measurement.__all__ if isinstance(value := getattr(measurement, name), type)]
    kinds = {kind.__name__ for kind in public if issubclass(kind, measurement.Observer) and not isabstract(kind)}
    titles = [line.removeprefix("## ") for line in site.observers().splitlines() if line.startswith("## ")]
    assert kinds | {"GradientNorms"} <= {title.split()[0] for title in titles}  # those of other packages may follow
    named = {type(each).__name__ for each in measurement.every()}
    assert {title for title in titles if "not in" in title} == {f'{name} (not in "all")' for name in kinds - named}
