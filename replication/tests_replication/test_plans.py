"""What a question's runs would take, and which claims its seeds can decide."""

from __future__ import annotations

import pytest

from sinkscope.cli.experiment import undecidable
from sinkscope_replication import order
from sinkscope_replication.questions import QUESTIONS


def test_most_claims_can_be_decided_by_their_seeds():
    """Those whose arms were fixed when their runs were there may not; they are named."""
    stuck = {name for name, question in QUESTIONS.items() if undecidable(question)}
    assert stuck <= {"metric", "learning-rate", "fixed-token", "positions", "heads", "emergence", "streaming"}, stuck


def test_the_order_names_what_is_missing_and_nothing_that_is_there(tmp_path, capsys):
    missing = {question.name: lacking for question, lacking in order.missing(results=tmp_path)}
    assert missing["data-amount"] == {"1/20": (6, 7, 8, 9), "1/100": (6, 7, 8, 9)}
    assert not missing.keys() & {"inputs", "emergence", "normalisation"}
    order.main(["--plan", "--results", str(tmp_path)])
    *lines, total = capsys.readouterr().out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("data-amount, "))
    assert lines[at + 1 : at + 3] == ["  1/20; seeds 6, 7, 8, 9", "  1/100; seeds 6, 7, 8, 9"]
    hours = [float(line.split()[-2]) for line in lines if line.endswith(" h:")]
    assert len(hours) == len(missing)
    assert min(hours) > 0
    assert float(total.split()[2]) == pytest.approx(sum(hours), abs=2)
    order.main(["data-amount", "--plan", "--results", str(tmp_path)])
    assert capsys.readouterr().out.splitlines()[:-1] == lines[at : at + 3]
    with pytest.raises(SystemExit):
        order.main(["sink-tokn", "--plan"])
    assert "did you mean 'sink-token'?" in capsys.readouterr().err
    with pytest.raises(ValueError, match="which is not a question"):
        list(order.missing(["nothing"], tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match="2"):
        order.main(["windows", "--plan", "--results", str(tmp_path / "file")])
    assert "file" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.slow
def test_an_experiment_says_what_it_would_take(sinkscope, tmp_path):
    plan = ("experiment", "run", "emergence", "--plan", "--json")
    whole = sinkscope(*plan).json
    assert (whole["runs"], whole["reused"]) == (13, 0)
    assert whole["hours"] > 0
    assert whole["disk_bytes"] > 13 * 4 * 1_000_000
    again = sinkscope(*plan, "--seeds", 4, "--reuse").json
    assert (again["runs"], again["reused"]) == (0, 4)
    assert list(tmp_path.iterdir()) == []
