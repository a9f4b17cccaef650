"""What all commands have in common, however they are added."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperOption

from sinkscope.cli.app import _command
from sinkscope.cli.commands import FIRST, Command, refuse_unread
from sinkscope.errors import InputError


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        yield from (
            commands(command, (*path, name)) if hasattr(command, "commands") else [(" ".join((*path, name)), command)]
        )


ALL = dict(commands(_command()))


def single_valued(command: Any) -> list[TyperOption]:
    options = [param for param in command.params if isinstance(param, TyperOption)]
    return [param for param in options if not (param.multiple or param.is_flag or param.count)]


@pytest.mark.parametrize("name", ALL)
def test_every_command_is_of_the_one_class(name: str):
    assert isinstance(ALL[name], Command)


@pytest.mark.parametrize("name", [name for name in ALL if single_valued(ALL[name])])
def test_an_option_of_one_value_is_refused_twice(name: str):
    for param in single_valued(ALL[name]):
        option = param.opts[-1]
        with pytest.raises(InputError, match=f"^{param.opts[0]} is given 2 times and takes one value$"):
            ALL[name].make_context(name, [option, "1", option, "2"])


def test_options_of_many_values_may_be_repeated(sinkscope, tmp_path: Path):
    assert "given 2 times" not in sinkscope("train", tmp_path / "no", "--set", "a=1", "--set", "b=2").error


@pytest.mark.parametrize("name", ALL)
def test_help_shows_few_options_first(name: str):
    command = ALL[name]
    context = command.context_class(command, info_name=name)
    shown = [param for param in command.get_params(context) if not getattr(param, "hidden", False)]
    panels = [param.rich_help_panel for param in shown if isinstance(param, TyperOption)]
    assert panels.count(None) <= FIRST
    assert set(panels) <= {None, "Advanced"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("measure", "./absent"), "no such folder: './absent'"),
        (("compare", "nano", "./absent"), "no such folder: './absent'"),
        (("generate", "absent.gguf"), "no such file: 'absent.gguf'"),
        (("cache", "a/b/c"), "no such folder: 'a/b/c'"),
        (("measure", "nano", "--text", "absent.txt"), "cannot read absent.txt: no such file or folder"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused_before_torch_is_imported(arguments: tuple[str, ...], said: str):
    code = f"import sys; from sinkscope.cli import main; main({list(arguments)!r}); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0
    assert said in done.stderr


def test_a_gguf_file_that_is_none_is_refused_before_torch_is_imported(sinkscope, tmp_path: Path):
    (tmp_path / "a.gguf").write_bytes(b"PK")
    assert "is no GGUF file" in sinkscope("measure", tmp_path / "a.gguf").error


def test_a_corpus_and_a_text_exclude_each_other(sinkscope, text: Path):
    for command in ("measure", "survey", "intervene", "quantize", "cache"):
        more = {"intervene": ["--what", "no-op"], "quantize": ["--scheme", "w8"]}.get(command, [])
        answer = sinkscope(command, "nano", *more, "--text", text, "--corpus", "python")
        assert "--corpus and --text exclude each other" in answer.error


def test_an_option_that_is_not_read_is_refused_where_it_was_given():
    command = ALL["generate"]
    typed = command.make_context("generate", ["nano", "--window", "8"])
    with pytest.raises(InputError, match=r"^--window goes with --stream$"):
        refuse_unread(typed, "goes with --stream", "sinks", "window")
    refuse_unread(typed, "goes with --stream", "sinks")  # at its default
