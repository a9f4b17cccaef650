"""The page of corrections: a number that moved is noticed, and has its reason."""

from __future__ import annotations

import pytest

from tools.pages import moved


def test_a_number_that_moved_or_is_gone_is_noticed() -> None:
    before = {"a: kept": (1.0, None), "a: moved": (2.0,), "b: gone": (3.0,)}
    after = {"a: kept": (1.0, None), "a: moved": (2.5,), "c: new": (9.0,)}
    assert [(row.key, row.after) for row in moved.moved(before, after)] == [("a: moved", (2.5,)), ("b: gone", ())]


def test_the_first_reason_that_fits_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moved, "REASONS", {"a: one": "narrow", "a: *": "wide"})
    reasons = [moved.Moved(key, (1.0,), (2.0,)).reason for key in ("a: one", "a: two", "b: one")]
    assert reasons == ["narrow", "wide", ""]


def test_leaves_go_by_the_names_of_their_arms_and_leave_timings_out() -> None:
    data = {"arms": [{"arm": "full", "kl": 0.5, "seconds": 3.0, "held": None}], "ok": True, "ends": [1, 2]}
    assert dict(moved.leaves(data)) == {"arms/full/kl": 0.5, "ends/0": 1, "ends/1": 2}


def test_what_was_published_is_frozen_whole() -> None:
    assert len(moved.frozen("studies")) > 1000


@pytest.mark.slow
def test_each_number_that_moved_has_its_reason() -> None:
    rows = moved.moved(moved.frozen("studies"), moved.studied())
    assert [row.key for row in rows if not row.reason] == []
