"""The shell: several models at once, options in a file, completion, paths that lead nowhere."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sinkscope.cli import main
from sinkscope.errors import InputError

FEW = ("--input", "random", "--observers", "few", "--samples", 2, "--tokens", 12)


@pytest.mark.release
def test_several_models_are_measured_as_each_alone(sinkscope, model, tmp_path):
    measured = sinkscope("measure", model, "nano", *FEW, "--json").json["models"]
    assert [each["model"] for each in measured] == [str(model), "nano"]
    assert measured[1]["sink_rate"] == sinkscope("measure", "nano", *FEW, "--json").json["sink_rate"]
    assert sinkscope("measure", model, "nano", *FEW, "--out", "both").out.count("written:") == 1
    assert (tmp_path / "both" / "differences.json").is_file()


@pytest.mark.slow
def test_options_in_a_file(sinkscope, model, tmp_path):
    (tmp_path / "mine.yaml").write_text("input: random\nobservers: few\nsamples: 2\ntokens: 12\n")
    given = ("measure", model, "--config", "mine.yaml", "--json")
    assert sinkscope(*given).json == sinkscope("measure", model, *FEW, "--json").json
    assert len(list((tmp_path / "sinkscope-measure").iterdir())) == 1  # the options count, not the file
    assert sinkscope(*given, "--samples", 3).json["samples"] == 3
    (tmp_path / "what.yaml").write_text(
        "what: [hide-sink]\non: first:1\ninput: random\nsamples: 2\ntokens: 12\ncontrols: 2\n"
    )
    assert sinkscope("intervene", model, "--config", "what.yaml", "--json").json["what"] == ["hide-sink"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sampels: 3", "unknown option in c.yaml 'sampels': did you mean 'samples'"),
        ("config: d.yaml", "unknown option in c.yaml 'config'"),
        ("- 3", "expected options and their values"),
        ("a: [", "cannot read c.yaml"),
        ("samples: many", "'--samples'"),
        (
            "maps: 3.1\nimages:\nfull: yes\nepsilon: 1e-1\nout: c.yaml",
            "cannot write to c.yaml",
        ),  # all but the last is right
    ],
)
def test_a_file_that_says_something_else(text, said, sinkscope, model, tmp_path):
    (tmp_path / "c.yaml").write_text(text)
    assert said in sinkscope("measure", model, *FEW[:4], "--config", "c.yaml").error
    assert "nowhere.yaml" in sinkscope("measure", model, "--config", "nowhere.yaml").error


def test_numbers_in_a_file_are_read_as_on_the_command_line(tmp_path, monkeypatch):
    """3.10 is the tenth head, not the first."""
    seen = {}

    def layer_and_head(option, text):
        seen[option] = text
        raise InputError("seen")

    monkeypatch.setattr("sinkscope.cli.measure.parse_heads", layer_and_head)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text("maps: 3.10\nsamples: 2")
    assert main(["measure", "nano", "--config", "c.yaml"]) == 2
    assert seen == {"--maps": "3.10"}


def test_paths_that_lead_nowhere(sinkscope):
    for command in (("measure", "./does-not-exist"), ("measure", "./does-not-exist", "nano")):
        assert "no such folder: './does-not-exist'" in sinkscope(*command).error


@pytest.mark.slow
def test_completion_knows_commands_and_options():
    environment = {
        **os.environ,
        "_SINKSCOPE_COMPLETE": "complete_bash",
        "COMP_WORDS": "sinkscope me",
        "COMP_CWORD": "1",
    }
    code = "import sys; from sinkscope.cli import main; sys.exit(main([]))"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["measure"], done.stderr
