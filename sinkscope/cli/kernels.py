"""`sinkscope kernels`: the fused GPU kernels, and any attention function, against the exact formulas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sinkscope.cli import options
from sinkscope.cli.commands import App
from sinkscope.errors import InputError, unknown
from sinkscope.report.terminal import only_json, plain, show, show_json, stderr, table

if TYPE_CHECKING:
    import torch

    from sinkscope.attention.kernels import Agreement

Style = Literal["plain", "transformers", "unmasked", "sdpa"]
Convention = Literal["tokens", "total"]
DTYPES = ("float32", "bfloat16", "float16", "float64")
PARITY = ("case", "dtype", "outcome", "output", "lse", "gradients", "limit")
DISAGREE = 1  # the exit code
COLUMNS = ("weights", "mask", "shape", "dtype", "output", "dq", "dk", "dv", "limit", "agrees")

app = App(no_args_is_help=True)


@app.callback(epilog="Example: sinkscope kernels check")
def kernels() -> None:
    """Attention functions beside the exact formulas: our fused GPU kernels (check), and any other (parity).

    The fused kernels compute sigmoid, ELU, ReLU and softpick attention. A call takes them only where they agree with
    the exact formulas on your GPU. That is tried when they are first met and remembered; `check` tries all of them now.
    """


@app.command("check", epilog="Example: sinkscope kernels check --device cuda:1 --json")
def check(device: options.Device = None, as_json: options.AsJson = False) -> None:
    """Compare every fused kernel with the exact formulas on your GPU: values and gradients. Takes some minutes, mostly
    compiling. Exits with 1 if one disagrees, with 2 if there is no GPU or no triton."""
    from sinkscope.attention.kernels import machine

    where = _usable(device)
    with only_json(as_json):
        found = [agreement for group in _compared(where) for agreement in group]
    here, wrong = machine(where), sum(not agreement.agrees for agreement in found)
    if as_json:
        rows = [agreement.to_dict() for agreement in found]
        show_json({"machine": asdict(here), "agree": not wrong, "comparisons": rows})
    else:
        show(table(COLUMNS, [_cells(agreement) for agreement in found], numbers_from=4, keys=2))
        show(plain(f"\n{len(found) - wrong} of {len(found)} comparisons agree on {here.gpu}"))
        for agreement in found:
            if agreement.problem is not None:
                show(plain(f"disagrees: {agreement.problem}"))
    if wrong:
        raise typer.Exit(DISAGREE)


@app.command("parity", epilog="Example: sinkscope kernels parity sdpa --without sink --without softcap")
def parity(
    function: Annotated[
        str,
        typer.Argument(
            metavar="FUNCTION",
            help="eager, flash, any attention implementation of transformers, or a function as module:function.",
        ),
    ] = "sdpa",
    style: Annotated[
        Style | None,
        typer.Option(help="How it is called. Default: plain for module:function, else as transformers does."),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="FEATURE", help="What it does not do and is not asked, such as sink; repeatable."),
    ] = None,
    lse: Annotated[
        Convention | None,
        typer.Option(help="What its log-sum-exp sums over. Default: either, but the same in all cases."),
    ] = None,
    gradients: Annotated[
        bool, typer.Option("--gradients/--no-gradients", help="Compare gradients too, or values alone.")
    ] = True,
    dtypes: Annotated[
        list[str] | None,
        typer.Option(
            "--dtype",
            metavar="|".join(DTYPES),
            help="Precision; repeatable. Default: float32, of flash attentions bfloat16.",
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 …")] = "cpu",
    complete: Annotated[bool, typer.Option("--complete", help="A case that is not supported counts as wrong.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Compare an attention function with float64 arithmetic, with and without sinks, windows, softcaps, grouped heads.
    Exits with 1 if a case is wrong, or if none could be compared, with 2 for bad input."""
    import torch

    from sinkscope.attention import parity as compare
    from sinkscope.attention.oracle import backend

    for name in dtypes or []:
        if name not in DTYPES:
            raise unknown("precision", name, DTYPES)
    chosen = backend(function)
    with only_json(as_json):
        found = compare(
            chosen.function,
            style=style or chosen.style,
            without=without or (),
            lse=lse,
            gradients=gradients,
            dtypes=[getattr(torch, name) for name in dtypes or []] or [chosen.dtype],
            device=options.usable_device(device),
            quiet=True,
        )
    wrong = [*found.wrong, *(found.missing if complete else ())]
    if as_json:
        show_json({**found.to_json(), "ok": found.ok and not wrong, "backend": function})
    else:
        show(table(PARITY, [cells[:-1] for cells in found.cells()], numbers_from=3, keys=2))
        show(plain(f"\n{found.summary}"))
        for row in found.rows:
            if row.note:
                show(plain(f"{row.case}, {row.dtype}: {row.outcome}: {row.note}"))
        if not found.ok and not wrong:
            show(plain("no case was compared: none is supported"))
    if wrong or not found.ok:
        raise typer.Exit(DISAGREE)


def _usable(device: str | None) -> torch.device:
    """The GPU to compare on, with its index. Raises `InputError` where there is none, or no triton."""
    import torch

    from sinkscope.attention.kernels import unavailable

    if device is None and not torch.cuda.is_available():
        raise InputError("no CUDA device here: fused kernels can only be compared on one")
    chosen = torch.device(options.usable_device(device))
    if reason := unavailable(chosen):
        raise InputError(f"fused kernels cannot be compared: {reason}")
    return torch.device("cuda", torch.cuda.current_device()) if chosen == torch.device("cuda") else chosen


def _compared(device: torch.device) -> Iterator[list[Agreement]]:
    """Each group of comparisons, remembered; with a bar, on a terminal only."""
    from rich.progress import track

    from sinkscope.attention.kernels import compared, every, keep

    console = stderr()
    for kernel in track(list(every()), "comparing", console=console, transient=True, disable=not console.is_terminal):
        found = compared(kernel.cases(), device)
        keep(kernel, found, device)
        yield found


def _cells(agreement: Agreement) -> tuple[object, ...]:
    row = agreement.to_dict()
    numbers = [f"{row['differences'].get(name, float('nan')):.1e}" for name in ("output", "query", "key", "value")]
    about = (row[name] for name in ("weights", "mask", "shape", "dtype"))
    return *about, *numbers, f"{row['limit']:.1e}", "yes" if agreement.agrees else "no"
