"""Every public name has one place on the site."""

from __future__ import annotations

from collections import Counter

import sinkscope as ss
from tools.site.api import everything, explained, exported


def test_every_public_name_is_explained_once_and_only_once() -> None:
    pages = explained()
    here = Counter(id(each.value) for names in pages.values() for each, other in names if other == each)
    assert set(here) == {id(each.value) for each in everything()}
    assert set(here.values()) == {1}
    assert {each.full for names in pages.values() for each, _ in names} == {each.full for each in everything()}
    assert set(pages) >= {"sinkscope", *(f"sinkscope.{room}" for room in ss._ROOMS if room != "report")}


def test_what_import_sinkscope_offers_is_explained_there() -> None:
    pages = explained()
    assert {each.name for each, other in pages["sinkscope"] if other == each} == set(ss._HOME)
    assert ("AttentionReceived", "sinkscope") in {
        (each.name, place.home) for each, place in pages["sinkscope.measurement"]
    }


def test_a_face_exports_what_it_says_or_what_it_imports() -> None:
    assert "StreamingCache" in exported(ss.caches)
    assert exported(ss.measurement) == sorted(ss.measurement.__all__)
