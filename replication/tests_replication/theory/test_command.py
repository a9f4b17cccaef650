"""`sinkscope theory`: what it prints and writes, and how a refuted claim shows."""

from __future__ import annotations

import json

import pytest

import sinkscope_replication.theory
from sinkscope.claims import Claim, EachWithin, Evidence, Verdict
from sinkscope_replication.theory import TOPICS, Check


def toy(name: str, value: float) -> Check:
    return Check(Claim(name, f"{name} is zero", "someone 2025", EachWithin(1e-6)), lambda: [Evidence("here", value)])


@pytest.fixture
def topics(monkeypatch):
    """Three quick claims that hold, of two topics; a test may add one that does not."""
    chosen = {
        "linear attention": TOPICS["linear attention"],
        "toys": (toy("[bold]one[/bold]", 0.0), toy("two", 1e-7)),
    }
    monkeypatch.setattr(sinkscope_replication.theory, "TOPICS", chosen)
    return chosen


def test_prints_claim_tolerance_residual_and_verdict(sinkscope, topics):
    answer = sinkscope("theory")
    assert answer.code == 0
    assert "3 supported" in answer.out
    words = " ".join(answer.out.split())
    assert "two two is zero ≤ 1e-06 1e-07 supported" in words
    assert "[bold]one[/bold]" in words
    assert all(topic in words for topic in topics)


def test_json_holds_every_number(sinkscope, topics):
    found = [Verdict.from_dict(verdict) for verdict in sinkscope("theory", "--json").json["verdicts"]]
    assert [verdict.claim.name for verdict in found] == ["linear attention", "[bold]one[/bold]", "two"]
    assert found[-1].evidence == (Evidence("here", 1e-7),)


@pytest.mark.slow
def test_a_refuted_claim_exits_with_1(sinkscope, topics, tmp_path):
    topics["toys"] = (toy("two", 1.0), toy("three", float("nan")))
    answer = sinkscope("theory", "--out", tmp_path / "theory")
    assert answer.code == 1
    assert "1 supported, 2 refuted" in answer.out
    assert "refuted (here: 1)" in " ".join(answer.out.split())
    assert (tmp_path / "theory" / "verdicts.json").is_file()
    assert sinkscope("theory", "--json").code == 1


@pytest.mark.slow
def test_out_holds_table_verdicts_and_page(sinkscope, topics, tmp_path):
    answer = sinkscope("theory", "--out", tmp_path / "theory")
    assert answer.code == 0
    folder = tmp_path / "theory"
    assert sorted(path.name for path in folder.iterdir()) == ["figure.html", "table.md", "verdicts.json"]
    assert len(json.loads((folder / "verdicts.json").read_text())) == 3
    assert "| two | two is zero | someone 2025 | ≤ 1e-06 | 1e-07 | 1 | supported |" in (folder / "table.md").read_text()
    page = (folder / "figure.html").read_text()
    assert "3 of 3" in page
    assert "[bold]one[/bold]" in page
    assert "torch" in page.partition("Where these numbers come from")[2]


def test_a_folder_that_cannot_be_written_is_bad_input(sinkscope, tmp_path):
    (tmp_path / "file").write_text("")
    assert "cannot write" in sinkscope("theory", "--out", tmp_path / "file" / "theory").error
