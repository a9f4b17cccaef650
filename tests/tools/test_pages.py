"""Marked blocks hold what results and code say, and the site's blocks have their place."""

from __future__ import annotations

from inspect import isabstract
from pathlib import Path

import pytest

from sinkscope import measurement
from tools.pages import ROOT, __main__, filled, site


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
