"""Every public name has one place on the site."""

from __future__ import annotations

import re
from collections import Counter

import pytest

import sinkscope as ss
from tools.pages import DOCS
from tools.site import names
from tools.site.names import Public, everything, explained, exported, note_of
from tools.site.sources import api_pages


def test_every_public_name_is_explained_once_and_only_once() -> None:
    pages = explained()
    here = Counter(id(each.value) for own, _ in pages.values() for each in own)
    assert set(here) == {id(each.value) for each in everything()}
    assert set(here.values()) == {1}
    assert {each.full for own, others in pages.values() for each in [*own, *(one for one, _ in others)]} == {
        each.full for each in everything()
    }
    assert set(pages) >= {"sinkscope", *(f"sinkscope.{room}" for room in ss._ROOMS if room != "report")}


def test_what_import_sinkscope_offers_is_explained_there() -> None:
    pages = explained()
    assert {each.name for each in pages["sinkscope"][0]} == set(ss._HOME)
    assert "AttentionReceived" in {each.name for each, _ in pages["sinkscope.measurement"][1]}


def test_a_face_exports_what_it_says_or_what_it_imports() -> None:
    assert "StreamingCache" in exported(ss.caches)
    assert exported(ss.measurement) == sorted(ss.measurement.__all__)


def test_a_name_that_is_forgotten_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "exported", lambda module: [])
    assert len(everything()) == len(ss._HOME)


@pytest.mark.slow
def test_every_name_has_a_directive_of_its_kind() -> None:
    text = "\n".join(api_pages().values())
    directives = Counter(line.split()[-1] for line in text.splitlines() if line.startswith((".. auto", ".. py:data")))
    assert set(directives.values()) == {1}
    assert set(directives) == {each.full for own, _ in explained().values() for each in own}
    assert ".. autofunction:: sinkscope.measure\n" in text
    assert ".. autoclass:: sinkscope.Measurement\n" in text
    assert ".. autoexception:: sinkscope.InputError\n" in text


def test_every_page_is_named_in_a_table_of_contents() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    tables = re.findall(r"^```\{toctree\}\n(.*?)^```", index, flags=re.MULTILINE | re.DOTALL)
    named = [line for table in tables for line in table.splitlines() if re.fullmatch(r"\w+", line)]
    assert len(named) == len(set(named))
    assert {path.stem for path in DOCS.glob("*.md")} - {"index"} == set(named) - {
        "contributing",
        "changelog",
        "security",
    }


@pytest.mark.slow
def test_a_constant_is_told_by_what_stands_below_it() -> None:
    found = [note_of(each) for own, _ in explained().values() for each in own if each.kind == "data"]
    assert any(found)
    assert note_of(Public("sinkscope.report", "WITHOUT_SCRIPTS", "")) == (
        "Hides what would be an empty box if no script fills it."
    )
    assert note_of(Public("sinkscope.report", "NO_SUCH_NAME", "")) == ""
