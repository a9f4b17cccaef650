"""`python -m tools.kernels [--device cuda:1] [--json]`: every fused GPU kernel against the exact formulas.

A call takes the fused kernels of sigmoid, ELU, ReLU and softpick attention only where they agree with the exact
formulas on this GPU. That is tried when they are first met and remembered; this tries all of them now, values and
gradients. It takes some minutes, mostly compiling. Exits with 1 if one disagrees, with 2 if there is no GPU or triton.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from sinkscope.cli.opening import usable_device
from sinkscope.errors import InputError
from sinkscope.report.terminal import fail, only_json, show, show_json, stderr

if TYPE_CHECKING:
    import torch

    from sinkscope.attention.oracle import ParityRow

DISAGREE, BAD_INPUT = 1, 2  # exit codes


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, print the table or JSON, return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.kernels", description=__doc__)
    parser.add_argument("--device", help="cuda, cuda:1 …")
    parser.add_argument("--json", action="store_true", help="JSON on stdout")
    given = parser.parse_args(argv)
    try:
        return check(given.device, given.json)
    except InputError as error:
        fail(str(error))
        return BAD_INPUT


def check(device: str | None, as_json: bool) -> int:
    """`main`, with options read. Raises `InputError` without a GPU that runs the kernels."""
    from sinkscope.attention.kernels import machine
    from sinkscope.attention.oracle import Parity

    where = _usable(device)
    with only_json(as_json):
        rows = tuple(row for group in _compared(where) for row in group)
    here = machine(where)
    found = Parity(f"fused kernels on {here.gpu}", rows)
    if as_json:
        show_json({"machine": asdict(here), **found.to_json()})
    else:
        show(found.table())
    return 0 if found.ok else DISAGREE


def _usable(device: str | None) -> torch.device:
    """The GPU to compare on, with its index. Raises `InputError` where there is none, or no triton."""
    import torch

    from sinkscope.attention.kernels import unavailable

    if device is None and not torch.cuda.is_available():
        raise InputError("no CUDA device here: fused kernels can only be compared on one")
    chosen = torch.device(usable_device(device))
    if reason := unavailable(chosen):
        raise InputError(f"fused kernels cannot be compared: {reason}")
    return torch.device("cuda", torch.cuda.current_device()) if chosen == torch.device("cuda") else chosen


def _compared(device: torch.device) -> Iterator[list[ParityRow]]:
    """Each group of comparisons, remembered; with a bar, on a terminal only."""
    from rich.progress import track

    from sinkscope.attention.kernels import compared, every, keep

    console = stderr()
    for kernel in track(list(every()), "comparing", console=console, transient=True, disable=not console.is_terminal):
        found = compared(kernel.cases(), device)
        keep(kernel, found, device)
        yield found


if __name__ == "__main__":
    sys.exit(main())
