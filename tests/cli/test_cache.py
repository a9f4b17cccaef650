"""`sinkscope cache`: a comparison of caches from the command line, whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from sinkscope.cli.cache import _budgets
from sinkscope.trials import load

Command = Callable[..., Any]
SMALL = ("--tokens", 32, "--scored", 4, "--samples", 4)


@pytest.mark.slow
def test_a_comparison_is_written_with_its_controls(sinkscope: Command, model: Path, text: Path, tmp_path: Path) -> None:
    answer = sinkscope("cache", model, "--policy", "snapkv", "--budget", "50%", "--protect", "first:1", "--text", text,
                       *SMALL, "--rounds", 1, "--without-sinks", "--explain", "--out", "found")  # fmt: skip
    assert answer.code == 0, answer.err
    folder = tmp_path / "found"
    assert {path.name for path in folder.iterdir()} == {"trial.nc", "trial.json", "table.csv", "figure.html"}
    trial = load(folder / "trial.nc")
    assert trial.arms == ["full", "snapkv@50%", "random for snapkv@50%", "snapkv@50% without sinks"]
    assert pd.read_csv(folder / "table.csv")["arm"].tolist() == trial.arms
    assert trial.record["reading"]["context"] == 28
    assert trial.record["protect"]["words"] == "first:1"
    assert trial.texts == 4
    assert answer.out.startswith("'snapkv@50%' ")
    assert "at the same bytes" in answer.out.splitlines()[0]
    assert "cannot tell" in answer.out  # --explain
    assert "4 caches\nabout" in answer.err
    page = (folder / "figure.html").read_text()
    assert "snapkv@50% without sinks" in page
    assert "http://" not in page.replace("http://www.w3.org", "").split("<script>")[0]


@pytest.mark.slow
def test_several_policies_and_budgets_as_json(sinkscope: Command, model: Path, text: Path) -> None:
    answer = sinkscope("cache", model, "--compare", "streaming,keydiff", "--budget", "10,50%", "--protect", "none",
                       "--text", text, *SMALL, "--json")  # fmt: skip
    assert answer.code == 0, answer.err
    arms = {arm["arm"]: arm for arm in answer.json["arms"]}
    assert arms.keys() >= {"full", "streaming@10", "streaming@50%", "keydiff@10", "keydiff@50%"}
    assert arms["keydiff@10"]["bytes_share"] < arms["keydiff@50%"]["bytes_share"] < arms["full"]["bytes_share"] == 1
    assert {"kl", "lost", "bytes", "agreement"} <= arms["full"].keys()
    assert "recall" not in arms["full"]
    assert "step_ms" not in arms["full"]
    assert answer.json["command"] == "cache"


@pytest.mark.slow
def test_measured_sinks_are_of_texts_of_their_own(sinkscope: Command, text: Path) -> None:
    answer = sinkscope("cache", "nano", "--policy", "keydiff", "--tokens", 64, "--samples", 4, "--json")
    assert answer.code == 0, answer.err
    assert answer.json["protect"]["positions"] == [0]
    assert answer.json["calibrated_on"]["texts"] == 8
    assert answer.json["texts"] == 4
    assert answer.json["reading"]["context"] == 32


@pytest.mark.slow
def test_without_a_sink_the_default_protects_nothing_and_measured_is_refused(
    sinkscope: Command, model: Path, text: Path
) -> None:
    answer = sinkscope("cache", model, "--policy", "keydiff", "--budget", "50%", "--text", text, *SMALL)
    assert answer.code == 0, answer.err
    assert "Nothing is protected: no sink" in answer.out
    refused = sinkscope("cache", model, "--protect", "measured", "--budget", "50%", "--text", text, *SMALL)
    assert "no sink" in refused.error


@pytest.mark.slow
def test_recall_can_be_asked_of_any_model(sinkscope: Command, model: Path, text: Path) -> None:
    answer = sinkscope("cache", model, "--policy", "keydiff", "--protect", "none", "--task", "recall", "--text", text,
                       *SMALL, "--json")  # fmt: skip
    assert answer.code == 0, answer.err
    assert all(0 <= arm["recall"] <= 1 for arm in answer.json["arms"])


def test_one_key_is_not_all_of_them() -> None:
    assert [repr(budget) for budget in _budgets("1,100%,1,50%,50%")] == ["1", "1.0", "0.5"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--policy", "snapvk"), "did you mean 'snapkv'"),
        (("--policy", "snapkv", "--compare", "h2o"), "exclude each other"),
        (("--policy", "snapkv,h2o"), "--compare takes several"),
        (("--budget", "0%"), "above 0"),
        (("--budget", "120%"), "at most 100%"),
        (("--budget", "many"), "write 25% or 64"),
        (("--budget", "2.5"), "write 25% or 64"),
        (("--budget", "nan%"), "above 0"),
        (("--protect", "mesured"), "did you mean 'measured'"),
        (("--protect", "first:0"), "first:0"),
        (("--protect", "first:1", "--epsilon", "0.2"), "--epsilon goes with"),
        (("--scored", "32"), "--scored 32"),
        (("--policy", "snapkv", "--budget", "4", "--recent", "6"), "too few to keep"),
        (("--epsilon", "2"), "'--epsilon': 2 is not between 0 and 1"),
        (("--device", "cuda:99"), "device 'cuda:99'"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    sinkscope: Command, model: Path, text: Path, tmp_path: Path, given: tuple, said: str
) -> None:
    small = zip(SMALL[::2], SMALL[1::2], strict=True)
    others = [each for option, value in small if option not in given for each in (option, value)]
    answer = sinkscope("cache", model, "--text", text, *others, *given, "--out", "found")
    assert said in answer.error
    assert not (tmp_path / "found").exists()


def test_a_model_that_reads_both_ways_is_refused(sinkscope: Command, text: Path) -> None:
    answer = sinkscope("cache", "nano-encoder", "--text", text, *SMALL)
    assert "cache" in answer.error


@pytest.mark.filterwarnings("always::DeprecationWarning")
def test_the_old_name_of_samples_is_taken_by_this_command_only(sinkscope: Command) -> None:
    answer = sinkscope("cache", "nano", "--windows", 1)
    assert "--windows is called --samples now" in answer.err
    assert "'--samples'" in answer.error
    assert "--windows" in sinkscope("calibrate", "nano", "--windows", 1).error
    assert "--windows" in sinkscope("intervene", "nano", "--windows", 1).error


def test_help_lists_the_policies(sinkscope: Command) -> None:
    assert "keydiff" in sinkscope("cache", "--help").out


def test_a_folder_of_another_command_is_left_alone(sinkscope: Command, model: Path, text: Path, tmp_path: Path) -> None:
    (tmp_path / "found").mkdir()
    (tmp_path / "found" / "measurement.nc").write_text("")
    answer = sinkscope("cache", model, "--text", text, *SMALL, "--out", "found")
    assert "holds the results of sinkscope measure" in answer.error
