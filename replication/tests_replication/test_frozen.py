"""The verdicts that were published, and the runs under them, are what they were."""

from __future__ import annotations

from dataclasses import replace

from sinkscope.experiments import Findings, findings, keys, read_rows, write_rows
from sinkscope_replication import frozen
from sinkscope_replication.questions import QUESTIONS
from sinkscope_replication.records import RECORDS
from sinkscope_replication.records.__main__ import added


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


def test_rows_are_written_as_they_stand_and_new_runs_are_added(tmp_path):
    rows = read_rows(RECORDS)
    write_rows(tmp_path / "runs.jsonl", rows)
    for path in RECORDS.parent.glob("*.jsonl"):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name
    key = keys(QUESTIONS["emergence"], "nano")["softmax"]
    seeds = {seed: replace(rows[key, 0], seed=seed, run=f"made-{seed}") for seed in (0, 99)}
    findings.write(tmp_path, Findings("emergence", "nano", 100, {"softmax": seeds}))
    assert list(added(tmp_path)) == [(key, 99)]
