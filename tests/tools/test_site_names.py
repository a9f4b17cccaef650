"""Every public name has one place on the site."""

from __future__ import annotations

from collections import Counter

import sinkscope as ss
from tools.site.names import everything, explained, exported


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
