from __future__ import annotations

import csv
import json

import pytest

FEW = ("--tokens", 16, "--samples", 4, "--controls", 2)


def test_prints_the_controls_and_writes_three_files(sinkscope, model, text, tmp_path):
    answer = sinkscope("intervene", model, "--what", "forbid-sink", "--text", text, *FEW, "--out", "found")
    assert answer.code == 0
    assert "their range" in answer.out
    assert "2 random controls" in answer.out
    folder = tmp_path / "found"
    assert sorted(path.name for path in folder.iterdir()) == ["effect.json", "figure.html", "table.csv"]
    rows = list(csv.DictReader((folder / "table.csv").read_text().splitlines()))
    assert [row["metric"] for row in rows] == ["loss (nats)", "KL to the baseline (nats)", "sink rate (%)"]
    stored = json.loads((folder / "effect.json").read_text())
    assert (stored["what"], len(stored["controls"])) == ("forbid-sink", 2)
    assert "as many entries, heads, tokens" in (folder / "figure.html").read_text()


@pytest.mark.parametrize(
    "what", [("zero-massive",), ("remove-onset",), ("first-view", "--to", 5), ("suppress-bands", "--band", 0)]
)
def test_json_is_alone_on_stdout(sinkscope, model, text, what):
    answer = sinkscope("intervene", model, "--what", *what, "--text", text, *FEW, "--json")
    assert answer.code == 0
    found = answer.json
    assert found["what"] == what[0]
    assert set(found["stands_out"]) == {"loss", "kl", "sink_rate"}
    assert found["baseline"]["kl"] == 0
    assert len(found["interventions"]) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--what", "forbid-sink", "--controls", 0), "controls"),
        (("--what", "forbid-sink", "--position", 40), "positions 0 to 15"),
        (("--what", "swap-position"), "no table of absolute positions"),
        (("--what", "suppress-bands", "--band", 20), "band 20 does not exist"),
        (("--what", "zero-sink-heads", "--epsilon", 0.99), "no head gives position 0 more than 0.99"),
        (("--what", "forbid-the-sink"), "forbid-the-sink"),
    ],
)
def test_bad_input_is_one_line(sinkscope, model, text, options, message):
    few = ("--tokens", 16, "--samples", 4)
    assert message in sinkscope("intervene", model, "--text", text, *few, *options).error
