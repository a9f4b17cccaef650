"""The Typer application and the entry point: exit code 0 done, 2 bad input, 1 a fault, 130 interrupted."""

from __future__ import annotations

import errno
import functools
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup

from sinkscope.cli import (
    cache,
    calibrate,
    check,
    demo,
    experiment,
    export,
    generate,
    intervene,
    lm_eval,
    measure,
    quantize,
    report,
    train,
    zoo,
)
from sinkscope.cli.command import ADVANCED, App
from sinkscope.cli.options import BAD_INPUT
from sinkscope.errors import InputError
from sinkscope.report.terminal import fail, note

INTERRUPTED = 130
ORDER = ("measure", "check", "intervene", "cache", "quantize", "generate", "export", "train", "experiment", "report")
UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS}


class _OrderedGroup(TyperGroup):
    """Lists commands in the order of `ORDER`; Typer lists groups of commands last."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=lambda name: (*ORDER, name).index(name))


app = App(
    name="sinkscope",
    cls=_OrderedGroup,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Start with: sinkscope check MODEL (a hub id, a folder, a GGUF file).",
)


def _show_version(wanted: bool) -> bool:
    if wanted:
        print(f"sinkscope {version('sinkscope')}")
        raise typer.Exit
    return wanted


@app.callback()
def _sinkscope(
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """The instrument for attention sinks in transformers: measure them, watch them emerge, use or remove them."""


def _add(function: Callable[..., None], example: str, **settings: Any) -> None:
    name = function.__name__.replace("_", "-")
    app.command(name, epilog=f"Example: sinkscope {name} {example}", **settings)(function)


_add(measure.measure, "model.gguf --samples 20")
_add(check.check, "model.gguf --plan")
_add(intervene.intervene, "model.gguf --what hide-sink --what mute-sink")
_add(cache.cache, "model.gguf --policy snapkv --budget 25% --protect measured")
_add(quantize.quantize, "model.gguf --scheme kv4-kivi --protect measured")
_add(generate.generate, "model.gguf --stream --sinks 1 --window 127 --max-tokens 500")
_add(export.export, "sinkscope-check/model.gguf --for llama.cpp --out serve")
_add(train.train, "nano --set attention=sigmoid --set steps=200")
app.add_typer(experiment.app, name="experiment")
_add(report.report, "runs/* measurement.nc --out report.html")
_add(calibrate.calibrate, "model.gguf --method zero-tuning --values 0.8,1.25", rich_help_panel=ADVANCED)
_add(zoo.zoo, "sigmoid", rich_help_panel=ADVANCED)
_add(
    lm_eval.lm_eval,
    "--model sinkscope --model_args pretrained=MODEL,cache=h2o,budget=64 --tasks NAME",
    rich_help_panel=ADVANCED,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": ["--about"]},
)
_add(demo.demo, "--quick --out sinkscope-demo", rich_help_panel=ADVANCED)


def _add_former(name: str) -> None:
    """Accept a former name of `measure` for one release, with a remark."""

    def run(context: typer.Context) -> None:
        note(f"sinkscope {name} is now sinkscope measure")
        _command().commands["measure"](args=context.args, prog_name="sinkscope measure", standalone_mode=False)

    settings = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    app.command(name, hidden=True, context_settings=settings)(run)


def _add_gone(group: App, name: str, instead: str) -> None:
    """Say, for one release, what to use instead of a command that is gone."""

    def run(context: typer.Context) -> None:
        raise InputError(f"{context.command_path} is gone: {instead}")

    settings = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    group.command(name, hidden=True, context_settings=settings)(run)


_add_former("compare")
_add_former("survey")
_add_gone(
    app, "theory", "it is part of the study in the folder replication/ of the repository, which says how to run it"
)
_add_gone(
    app,
    "kernels",
    "run make kernels in the repository, which compares all fused kernels with the formulas, or in Python "
    'sinkscope.attention.parity("NAME") for one operation',
)
_add_gone(
    experiment.app,
    "queue",
    "use `experiment run` for a question; the study, in the folder replication/ of the repository, has its own order",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. A fault of ours keeps its traceback."""
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        return _run(argv)


@functools.cache
def _command() -> Any:
    """All commands with their options, made once in a process."""
    command = typer.main.get_command(app)
    _hide_flag_types(command)
    return command


def _hide_flag_types(command: Any, parent: Any = None) -> None:
    """Show flags in help without a value, which they do not take; Typer writes `<bool>` after them."""
    context = command.context_class(command, parent=parent, info_name=command.name, **command.context_settings)
    for param in command.get_params(context):  # that of --help included
        if getattr(param, "is_bool_flag", False):
            param.metavar = ""
    for inner in getattr(command, "commands", {}).values():
        _hide_flag_types(inner, context)


def _run(argv: Sequence[str] | None) -> int:
    try:
        code = _command()(args=argv, prog_name="sinkscope", standalone_mode=False)
    except InputError as error:
        fail(str(error))
        return BAD_INPUT
    except typer.TyperException as error:
        if message := error.format_message():  # empty where the help was shown instead
            fail(message.replace("Value error, ", ""))
        return BAD_INPUT
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        fail(f"cannot write {error.filename or 'the output'}: {error.strerror}")
        return BAD_INPUT
    if code == INTERRUPTED:
        fail("interrupted")
    return int(code or 0)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    note(f"warning: {message}")
