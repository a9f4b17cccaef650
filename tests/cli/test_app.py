from __future__ import annotations

import subprocess
import sys
import time

import pytest

from sinkscope.cli import app, main

COMMANDS = ("demo", "measure", "intervene", "train", "zoo", "report")
GROUPED = (*(f"experiment {name}" for name in ("list", "show", "run", "verdict")),)


def test_help_names_every_command_and_only_what_exists(sinkscope):
    answer = sinkscope("--help")
    assert answer.code == 0
    assert all(command in answer.out for command in COMMANDS)
    assert "experiment" in answer.out


@pytest.mark.parametrize("command", COMMANDS + GROUPED)
def test_every_command_has_an_example_and_json(sinkscope, command):
    answer = sinkscope(*command.split(), "--help")
    assert answer.code == 0
    assert f"Example: sinkscope {command}" in answer.out
    assert "--json" in answer.out
    assert "<bool>" not in answer.out, "flags take no value"
    assert sinkscope(*command.split(), "-h").out == answer.out


@pytest.mark.slow
def test_help_imports_none_of_the_heavy_rooms():
    """The reason why help answers in a second; counted in modules, since a busy machine's clock proves nothing."""
    code = (
        "import sys; from sinkscope.cli import main; assert main(['--help']) == 0; "
        "heavy = {'torch', 'transformers', 'xarray', 'pandas', 'plotly', 'numpy', 'pydantic'}; "
        "found = sorted(heavy & set(sys.modules)); sys.exit(f'imported {found}' if found else 0)"
    )
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 10


@pytest.mark.slow
def test_the_module_runs_like_the_command():
    done = subprocess.run([sys.executable, "-m", "sinkscope", "--version"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stdout.startswith("sinkscope ")


@pytest.mark.slow
def test_bad_input_from_a_shell_exits_with_2():
    done = subprocess.run([sys.executable, "-m", "sinkscope", "zo"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "error: No such command 'zo'. Did you mean 'zoo'?\n"


def test_an_unknown_command_gets_the_nearest(sinkscope):
    assert "'measure'" in sinkscope("mesure", "nano").error


@pytest.mark.parametrize(
    ("command", "options", "instead"),
    [
        ("theory", "--json", "in the folder replication/"),
        ("kernels", "check", "make kernels"),
        ("kernels", "parity softmax", 'sinkscope.attention.parity("NAME")'),
        ("experiment queue", "--scale nano", "use `experiment run`"),
    ],
)
def test_a_command_that_is_gone_says_what_to_use_instead(sinkscope, command, options, instead):
    error = sinkscope(*command.split(), *options.split()).error
    assert error.startswith(f"error: sinkscope {command} is gone: ")
    assert instead in error
    *group, name = command.split()
    assert name not in sinkscope(*group, "--help").out


def test_an_unknown_option_gets_the_nearest(sinkscope):
    assert "--samples" in sinkscope("measure", "nano", "--sample", 3).error


def test_a_missing_argument_is_named(sinkscope):
    assert "MODEL" in sinkscope("measure").error


def test_no_command_shows_the_help(sinkscope):
    answer = sinkscope()
    assert "Commands" in answer.out + answer.err
    assert "error: \n" not in answer.err


def _failing(monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("sinkscope.cli.zoo.described", fail)


def test_an_interruption_exits_with_130(sinkscope, monkeypatch):
    _failing(monkeypatch, KeyboardInterrupt())
    answer = sinkscope("zoo")
    assert answer.code == 130
    assert answer.err == "error: interrupted\n"


@pytest.mark.parametrize("number", [13, 28, 30])
def test_what_cannot_be_written_is_bad_input(sinkscope, monkeypatch, number):
    _failing(monkeypatch, OSError(number, "reason", "/some/where"))
    assert sinkscope("zoo").error == "error: cannot write /some/where: reason"


def test_a_fault_of_ours_keeps_its_traceback(monkeypatch):
    _failing(monkeypatch, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        main(["zoo"])


def test_a_message_of_many_lines_becomes_one(sinkscope, monkeypatch):
    from sinkscope.errors import InputError

    _failing(monkeypatch, InputError("first\nsecond [bold]markup[/bold] \x1b[31mred"))
    assert sinkscope("zoo").error == "error: first\\nsecond [bold]markup[/bold] �[31mred"


def test_the_entry_point_is_main():
    assert app.main is main
