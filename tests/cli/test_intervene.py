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
        (("--what", "forbid-sink", "--layers", "1"), "--layers chooses heads, which --what zero-sink-heads acts on"),
        (("--what", "forbid-sink", "--control", "norm"), "--control chooses heads"),
        (("--what", "zero-sink-heads", "--layers", "3-1"), "'3-1' is no layer and no range of layers; write 0,4-7"),
        (("--what", "zero-sink-heads", "--heads", "3"), "'3' is no head; write layer.head, as in 3.0,3.2"),
        (("--what", "zero-sink-heads", "--heads", "9.0"), "head 9.0 does not exist"),
        (("--what", "zero-sink-heads", "--control", "all"), "--control"),
    ],
)
def test_bad_input_is_one_line(sinkscope, model, text, options, message):
    few = ("--tokens", 16, "--samples", 4)
    assert message in sinkscope("intervene", model, "--text", text, *few, *options).error


@pytest.mark.parametrize(
    ("options", "control"),
    [
        (("--strongest", 1), "as many other heads of any layer, of 7 that remain"),
        (("--heads", "0.1,1.2", "--control", "layer"), "as many other heads of the same layers, of 6 that remain"),
        (
            ("--layers", "0-1", "--strongest", 2, "--control", "norm"),
            "each of about the output norm of one of them, of 6",
        ),
    ],
)
def test_the_control_of_heads_is_said_with_how_many_remain(sinkscope, model, text, tmp_path, options, control):
    few = ("--text", text, *FEW, "--epsilon", 0.01, "--out", "found")
    answer = sinkscope("intervene", model, "--what", "zero-sink-heads", *options, *few)
    assert answer.code == 0
    stored = json.loads((tmp_path / "found" / "effect.json").read_text())
    assert control in stored["control"]
    assert control in " ".join(answer.out.split())
    assert control in (tmp_path / "found" / "figure.html").read_text()
