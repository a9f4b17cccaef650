"""`python -m sinkscope_replication.theory`: what it prints and writes, and how a failing claim shows."""

from __future__ import annotations

import json

import pytest

from sinkscope.errors import InputError
from sinkscope.statistics.claims import CaseValue, Claim, EachWithin
from sinkscope_replication.theory import TOPICS, Check, __main__, by_topic


def toy(name: str, value: float) -> Check:
    return Check(Claim(name, f"{name} is zero", "someone 2025", EachWithin(1e-6)), lambda: [CaseValue("here", value)])


@pytest.fixture
def topics(monkeypatch):
    """Three quick claims that hold, of two topics; a test may add one that does not."""
    chosen = {
        "linear attention": TOPICS["linear attention"],
        "toys": (toy("[bold]one[/bold]", 0.0), toy("two", 1e-7)),
    }
    monkeypatch.setattr(__main__, "by_topic", lambda: by_topic(chosen))
    return chosen


def test_prints_claim_tolerance_residual_and_verdict(capsys, topics):
    assert __main__.main([]) == 0
    out = capsys.readouterr().out
    assert "3 confirmed" in out
    words = " ".join(out.split())
    assert "two two is zero ≤ 1e-06 1e-07 confirmed" in words
    assert "[bold]one[/bold]" in words
    assert all(topic in words for topic in topics)


@pytest.mark.slow
def test_a_claim_that_does_not_hold_exits_with_1(capsys, topics, tmp_path):
    topics["toys"] = (toy("two", 1.0), toy("three", float("nan")))
    assert __main__.main([str(tmp_path / "theory")]) == 1
    out = capsys.readouterr().out
    assert "1 confirmed, 2 not seen" in out
    assert "not seen (here: 1)" in " ".join(out.split())
    assert (tmp_path / "theory" / "verdicts.json").is_file()


@pytest.mark.slow
def test_the_folder_holds_table_verdicts_and_page(topics, tmp_path):
    folder = tmp_path / "theory"
    assert __main__.main([str(folder)]) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["figure.html", "table.md", "verdicts.json"]
    assert len(json.loads((folder / "verdicts.json").read_text())) == 3
    assert "| two | two is zero | someone 2025 | ≤ 1e-06 | 1e-07 | 1 | confirmed |" in (folder / "table.md").read_text()
    page = (folder / "figure.html").read_text()
    assert "3 of 3" in page
    assert "[bold]one[/bold]" in page
    assert "torch" in page.partition("Where these numbers come from")[2]


def test_a_folder_that_cannot_be_written_is_bad_input(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        __main__.main([str(tmp_path / "file" / "theory")])
