from __future__ import annotations

import csv
import json

import pytest

FEW = ("--tokens", 16, "--samples", 4, "--controls", 2)


@pytest.mark.slow
def test_prints_the_answer_and_writes_a_trial(sinkscope, model, text, tmp_path):
    on = ("--what", "hide-sink", "--on", "first:1", "--text", text)
    answer = sinkscope("intervene", model, *on, *FEW, "--out", "found")
    assert answer.code == 0
    assert "hide-sink costs" in " ".join(answer.out.split())
    folder = tmp_path / "found"
    assert sorted(path.name for path in folder.iterdir()) == ["figure.html", "table.csv", "trial.json", "trial.nc"]
    rows = list(csv.DictReader((folder / "table.csv").read_text().splitlines()))
    assert [row["role"] for row in rows] == ["reference", "arm", "control", "control"]
    stored = json.loads((folder / "trial.json").read_text())
    assert (stored["what"], stored["sink"]["positions"]) == (["hide-sink"], [0])
    assert "keys for the same queries" in " ".join((folder / "figure.html").read_text().split())


@pytest.mark.slow
def test_the_old_name_is_the_new_one_with_a_note(sinkscope, model, text):
    answer = sinkscope("intervene", model, "--what", "forbid-sink", "--on", "first:1", "--text", text, *FEW, "--json")
    assert answer.json["what"] == ["hide-sink"]
    assert "forbid-sink is now hide-sink" in answer.err


@pytest.mark.slow
def test_all_arms_of_the_question_on_texts_that_constants_are_not_of(sinkscope, model, text):
    few = ("--tokens", 24, "--samples", 4, "--controls", 2)
    found = sinkscope("intervene", model, "--on", "first:1", "--text", text, *few, "--json").json
    arms = {row["arm"] for row in found["arms"] if row["role"] == "arm"}
    assert {"hide-sink", "mute-sink", "fold-sink", "trim-sink", "trim-others"} <= arms
    assert (found["texts"], found["calibrated_on"]["texts"]) == (4, 8)


@pytest.mark.slow
@pytest.mark.parametrize(
    "what", [("zero-massive",), ("remove-onset",), ("first-view", "--to", 5), ("suppress-bands", "--band", 0)]
)
def test_json_is_alone_on_stdout(sinkscope, model, text, what):
    answer = sinkscope("intervene", model, "--what", *what, "--text", text, *FEW, "--json")
    assert answer.code == 0
    found = answer.json
    assert found["what"] == [what[0]]
    assert [row["role"] for row in found["arms"]] == ["reference", "arm", "control", "control"]
    assert set(found["sink"]["afterwards"]) == {"full", what[0]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--what", "hide-sink", "--controls", 0), "controls"),
        (("--what", "remove-onset", "--position", 40), "positions 0 to 15"),
        (("--what", "hide-sink", "--position", 0), "is read by interventions that are no arms on the sink"),
        (("--what", "first-view", "--position", 3), "not by first-view"),
        (("--what", "hide-sink", "--what", "remove-onset"), "one at a time; together run hide-sink, mute-sink"),
        (("--what", "hide-sink", "--on", "first:1", "--after", 15), "none comes 15 after position 0"),
        (("--what", "remove-onset", "--on", "first:1"), "--on is read by hide-sink"),
        (("--what", "swap-position"), "no table of absolute positions"),
        (("--what", "suppress-bands", "--band", 20), "band 20 does not exist"),
        (("--what", "zero-sink-heads", "--epsilon", 0.99), "no head gives position 0 more than 0.99"),
        (("--what", "forbid-the-sink"), "forbid-the-sink"),
        (("--what", "remove-onset", "--layers", "1"), "--layers chooses heads, which --what zero-sink-heads acts on"),
        (("--what", "hide-sink", "--control", "norm"), "--control chooses heads"),
        (
            ("--what", "zero-sink-heads", "--layers", "3-1"),
            "'3-1' is neither a layer nor a range of layers; write 0,4-7",
        ),
        (("--what", "zero-sink-heads", "--heads", "3"), "'3' is not a head; write layer.head, as in 3.0,3.2"),
        (("--what", "zero-sink-heads", "--heads", "9.0"), "head 9.0 does not exist"),
        (("--what", "zero-sink-heads", "--control", "all"), "--control"),
    ],
)
def test_bad_input_is_one_line(sinkscope, model, text, options, message):
    few = ("--tokens", 16, "--samples", 4)
    assert message in sinkscope("intervene", model, "--text", text, *few, *options).error


@pytest.mark.slow
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
    stored = json.loads((tmp_path / "found" / "trial.json").read_text())
    assert control in stored["verdict"]
    assert control in " ".join(answer.out.split())
    assert control in (tmp_path / "found" / "figure.html").read_text()
