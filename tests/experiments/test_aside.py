"""What a record no longer holds is kept beside it, once, and judged by nothing."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from sinkscope.errors import InputError
from sinkscope.experiments import QUESTIONS, Findings, Observed, known
from sinkscope.experiments import findings as kept
from sinkscope.experiments.aside import held, set_aside
from sinkscope.experiments.aside import replace as put


def run(name: str, seed: int = 0, value: float = 1.0, loss: float = 2.0, layout: int = 7) -> Observed:
    metrics, curves = {"sink_0": value, "lift": math.nan}, {"loss": (3.0, math.nan, loss)}
    return Observed(name, "finished", seed, metrics, (0, 1, 2), curves, layout=layout, started="2025-05-05T10:00:00")


def findings(*runs: Observed, label: str = "softmax") -> Findings:
    return Findings("emergence", "nano", 3, {label: {one.seed: one for one in runs}}, {}, {"hosts": [], "versions": {}})


def written(folder: Path, before: Findings, after: Findings) -> list[dict[str, dict[int, Observed]]]:
    """What lies aside when one record took another's place."""
    put(folder, before, after)
    assert json.loads((folder / "nano" / "emergence.json").read_text()) == json.loads(json.dumps(after.to_dict()))
    paths = set_aside(folder, "emergence", "nano")
    return [kept.read(folder / "set_aside", path.stem, "nano").runs for path in paths]


def test_runs_of_another_version_another_layout_and_a_variation_that_is_gone_are_kept(tmp_path):
    before = Findings("emergence", "nano", 2, {"softmax": {0: run("old"), 1: run("new", 1)}, "gone": {0: run("g")}})
    (aside,) = written(tmp_path, before, findings(run("new"), run("new", 1)))
    assert {label: {seed: one.run for seed, one in seeds.items()} for label, seeds in aside.items()} == {
        "softmax": {0: "old"},
        "gone": {0: "g"},
    }
    assert known([tmp_path], "nano").of(QUESTIONS["emergence"]).runs["softmax"][0].run == "new"


def test_what_was_read_anew_or_only_cost_something_else_is_no_loss(tmp_path):
    one = run("r", layout=6)
    after = findings(replace(one, layout=7, metrics={"sink_0": 1.0000001, "key_angle": 1.2}))
    assert written(tmp_path, findings(one), after) == []
    assert written(tmp_path, after, findings(replace(after.runs["softmax"][0], seconds=9.0))) == []
    assert written(tmp_path, None, after) == []


def test_what_was_read_with_other_numbers_or_more_of_them_is_kept(tmp_path):
    one, other = run("r", value=1.0), run("r", value=1.1)
    assert [each["softmax"][0]["sink_0"] for each in written(tmp_path / "a", findings(one), findings(other))] == [1.0]
    older = run("r", layout=6)
    assert [each["softmax"][0].layout for each in written(tmp_path / "b", findings(one), findings(older))] == [7]


def test_a_repetition_with_other_numbers_is_kept_and_so_is_the_next(tmp_path):
    assert len(written(tmp_path, findings(run("r", loss=2.0)), findings(run("r", loss=2.1)))) == 1
    assert len(written(tmp_path, findings(run("r", loss=2.0)), findings(run("r", loss=2.1)))) == 1, "once is enough"
    first, second = written(tmp_path, findings(run("r", loss=2.1)), findings(run("r", loss=2.2)))
    assert [each["softmax"][0].curves["loss"][2] for each in (first, second)] == [2.0, 2.1]


def test_a_question_whose_name_begins_like_another_s_has_files_of_its_own(tmp_path):
    put(tmp_path, replace(findings(run("old")), question="emergence-2"), replace(findings(), question="emergence-2"))
    assert set_aside(tmp_path, "emergence", "nano") == []
    assert len(set_aside(tmp_path, "emergence-2", "nano")) == 1


def test_a_folder_in_which_nothing_can_be_locked_is_one_line(tmp_path):
    (tmp_path / "nano").write_text("a file where a folder should be")
    with pytest.raises(InputError, match="cannot write"), held(tmp_path, "emergence", "nano"):
        pass


def test_what_has_not_changed_is_not_written_again(tmp_path):
    known = replace(run("r"), heads={"alpha": ((0.5, math.nan),)})
    path = put(tmp_path, None, findings(known))
    wrote = path.stat().st_ino
    before = kept.read(tmp_path, "emergence", "nano")
    assert put(tmp_path, before, findings(known)) == path
    assert path.stat().st_ino == wrote


@pytest.mark.parametrize(
    "change",
    [
        {"seconds": 9.0},
        {"reason": "no room"},
        {"metrics": {"sink_0": 1.0, "lift": 2.0}},
        {"metrics": {"sink_0": 1.0, "lift": math.nan, "loss": 2.0}},
        {"curves": {"loss": (3.0, 2.5, 2.0)}},
        {"curves": {"loss": (3.0, math.nan, 2.0), "lift": (1.0, 1.0, 1.0)}},
        {"heads": {"alpha": ((0.5, 0.25),)}},
        {"heads": {}},
        {"layout": 8},
        {"steps": (0, 1, 3)},
    ],
)
def test_any_change_is_written(tmp_path, change):
    known = replace(run("r"), heads={"alpha": ((0.5, math.nan),)})
    wrote = put(tmp_path, None, findings(known)).stat().st_ino
    written(tmp_path, findings(known), findings(replace(known, **change)))
    assert kept.path_of(tmp_path, "emergence", "nano").stat().st_ino != wrote


@pytest.mark.parametrize(
    "change", [{"seeds": 4}, {"failed": {"softmax": {1: "no room"}}}, {"provenance": {}}, {"runs": {"softmax": {}}}]
)
def test_any_change_beside_the_runs_is_written(tmp_path, change):
    wrote = put(tmp_path, None, findings(run("r"))).stat().st_ino
    written(tmp_path, findings(run("r")), replace(findings(run("r")), **change))
    assert kept.path_of(tmp_path, "emergence", "nano").stat().st_ino != wrote
