"""The Typer application and the entry point: exit code 0 done, 2 bad input, 1 a fault, 130 interrupted."""

from __future__ import annotations

import errno
import functools
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, Any, TextIO

import typer

from sinkscope.cli import (
    cache,
    calibrate,
    check,
    demo,
    export,
    generate,
    intervene,
    measure,
    quantize,
    report,
    survey,
    train,
    zoo,
)
from sinkscope.cli.asking import experiment
from sinkscope.cli.commands import App
from sinkscope.cli.measuring import comparing, lm_eval
from sinkscope.cli.options import BAD_INPUT
from sinkscope.errors import InputError
from sinkscope.report.terminal import fail, note

INTERRUPTED = 130
_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS}

app = App(
    name="sinkscope",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Start with: sinkscope demo --quick",
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


app.command("demo", epilog="Example: sinkscope demo --quick --out sinkscope-demo")(demo.demo)
app.command("check", cls=check.ListingSections, epilog="Example: sinkscope check model.gguf --plan")(check.check)
app.command("export", epilog="Example: sinkscope export sinkscope-check/model.gguf --for llama.cpp --out serve")(
    export.export
)
app.command("measure", epilog="Example: sinkscope measure nano --input natural --tokens 64 --samples 100")(
    measure.measure
)
app.command("compare", epilog="Example: sinkscope compare nano runs/mine/checkpoints/checkpoint-500 --text mine.jsonl")(
    comparing.compare
)
app.command("survey", epilog="Example: sinkscope survey nano --input natural --input repeated --samples 100")(
    survey.survey
)
app.command(
    "intervene",
    cls=intervene.ListingNames,
    epilog="Example: sinkscope intervene nano --what zero-sink-heads --samples 50",
)(intervene.intervene)
app.command(
    "cache",
    cls=cache.ListingPolicies,
    epilog="Example: sinkscope cache nano-recall --policy snapkv --budget 25% --protect measured",
)(cache.cache)
app.command(
    "calibrate",
    cls=calibrate.ListingMethods,
    epilog="Example: sinkscope calibrate nano --method zero-tuning --values 0.8,1.25",
)(calibrate.calibrate)
app.command(
    "quantize",
    cls=quantize.ListingSchemes,
    epilog="Example: sinkscope quantize nano --scheme w8a8-tensor --protect measured",
)(quantize.quantize)
app.command(
    "lm-eval",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": ["--about"]},
    epilog="Example: sinkscope lm-eval --model sinkscope --model_args pretrained=nano,cache=h2o,budget=64 --tasks NAME",
)(lm_eval.lm_eval)
app.command("generate", epilog="Example: sinkscope generate nano --stream --sinks 1 --window 127 --max-tokens 500")(
    generate.generate
)
app.command("train", epilog="Example: sinkscope train nano --set attention=sigmoid --set steps=200")(train.train)
app.command("zoo", epilog="Example: sinkscope zoo sigmoid")(zoo.zoo)
app.add_typer(experiment.app, name="experiment")
app.command("report", epilog="Example: sinkscope report runs/* measurement.nc --out report.html")(report.report)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. A fault of ours keeps its traceback."""
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        return _run(argv)


@functools.cache
def _command() -> Any:
    """All commands with their options, made once in a process."""
    made = typer.main.get_command(app)
    _bare_flags(made)
    return made


def _bare_flags(command: Any, parent: Any = None) -> None:
    """Let help show flags without a value, which they do not take; Typer writes `<bool>` beside them."""
    context = command.context_class(command, parent=parent, info_name=command.name, **command.context_settings)
    for param in command.get_params(context):  # that of --help among them
        if getattr(param, "is_bool_flag", False):
            param.metavar = ""
    for inner in getattr(command, "commands", {}).values():
        _bare_flags(inner, context)


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
        if error.errno not in _UNWRITABLE:
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
