"""The verdicts that were published, and the runs under them, are what they were."""

from __future__ import annotations

from sinkscope_replication import frozen
from sinkscope_replication.records import RECORDS


def test_a_verdict_that_moved_or_is_gone_is_noticed():
    before = {"a": ("supported", 1.0), "b": ("refuted", 2.0), "c": ("supported", 3.0)}
    after = {"a": ("supported", 1.0), "b": ("refuted", 2.5), "d": ("supported", 4.0)}
    assert frozen.moved(before, after) == {"b": (("refuted", 2.0), ("refuted", 2.5)), "c": (("supported", 3.0), ())}
    assert [frozen.rounded(value) for value in (None, 1.23456, float("nan"))] == [None, 1.235, "nan"]


def test_no_verdict_moved():
    before = frozen.frozen()
    assert len(before) == 504
    assert frozen.moved(before, frozen.judged()) == {}


def test_records_are_small():
    assert sum(path.stat().st_size for path in RECORDS.parent.glob("*.jsonl")) <= 4e6
