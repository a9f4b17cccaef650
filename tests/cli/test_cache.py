"""`sinkscope cache`: a comparison of caches from the command line, whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from sinkscope.evaluate import CacheComparison

Command = Callable[..., Any]
SMALL = ("--tokens", 30, "--scored", 6, "--windows", 4, "--written", 2, "--rounds", 1)


@pytest.mark.slow
def test_a_comparison_is_written_with_its_controls(sinkscope: Command, model: Path, text: Path, tmp_path: Path) -> None:
    answer = sinkscope("cache", model, "--policy", "snapkv", "--budget", "50%", "--protect", "first:1", "--text", text,
                       *SMALL, "--out", "found")  # fmt: skip
    assert answer.code == 0, answer.err
    folder = tmp_path / "found"
    assert {path.name for path in folder.iterdir()} == {"comparison.nc", "comparison.json", "table.csv", "figure.html"}
    found = CacheComparison.load(folder / "comparison.nc")
    assert found.arms == ["full", "snapkv@50%", "snapkv@50%+place", "random@50%"]
    assert pd.read_csv(folder / "table.csv")["arm"].tolist() == found.arms
    assert found.record["context"] == 24
    assert found.record["protect"] == "first:1"
    for name in found.arms:
        assert name.split("@")[0] in answer.out
    page = (folder / "figure.html").read_text()
    assert "snapkv@50%+place" in page
    assert "Nats lost" in page
    assert "http://" not in page.replace("http://www.w3.org", "").split("<script>")[0]


@pytest.mark.slow
def test_several_policies_and_budgets_as_json(sinkscope: Command, model: Path, text: Path) -> None:
    answer = sinkscope("cache", model, "--compare", "streaming,keydiff", "--budget", "10,50%", "--text", text, *SMALL,
                       "--json")  # fmt: skip
    assert answer.code == 0, answer.err
    arms = {arm["arm"]: arm for arm in answer.json["arms"]}
    assert arms.keys() >= {"full", "streaming@10", "streaming@50%", "keydiff@10", "keydiff@50%", "random@10"}
    assert arms["keydiff@10"]["kept"] < arms["keydiff@50%"]["kept"] < arms["full"]["kept"] == 1
    assert {"perplexity", "loss", "held_mib", "step_ms", "same"} <= arms["full"].keys()
    assert "recall" not in arms["full"]


@pytest.mark.slow
def test_the_measured_sink_is_found_and_said(sinkscope: Command, model: Path, text: Path) -> None:
    answer = sinkscope("cache", model, "--policy", "keydiff", "--budget", "50%", "--protect", "measured", "--epsilon",
                       "0.1", "--text", text, *SMALL)  # fmt: skip
    assert answer.code == 0, answer.err
    assert "measured sinks stand at 0" in answer.err


@pytest.mark.slow
def test_recall_can_be_asked_of_any_model(sinkscope: Command, model: Path, text: Path) -> None:
    answer = sinkscope("cache", model, "--policy", "keydiff", "--task", "recall", "--text", text, *SMALL, "--json")
    assert answer.code == 0, answer.err
    assert all(0 <= arm["recall"] <= 1 for arm in answer.json["arms"])


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
        (("--protect", "first:0"), "first:N"),
        (("--scored", "30"), "--scored 30"),
        (("--policy", "snapkv", "--budget", "4", "--recent", "6"), "too few to keep"),
        (("--epsilon", "2"), "epsilon"),
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


def test_help_lists_the_policies(sinkscope: Command) -> None:
    assert "keydiff" in sinkscope("cache", "--help").out


def test_a_folder_of_another_command_is_left_alone(sinkscope: Command, model: Path, text: Path, tmp_path: Path) -> None:
    (tmp_path / "found").mkdir()
    (tmp_path / "found" / "measurement.nc").write_text("")
    answer = sinkscope("cache", model, "--text", text, *SMALL, "--out", "found")
    assert "holds the results of sinkscope measure" in answer.error
