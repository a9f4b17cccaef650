"""`sinkscope measure --plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sinkscope.cli.options import usable_device
from sinkscope.report.terminal import plain, show, show_json, table

if TYPE_CHECKING:
    from sinkscope.cli.given import Reads, Runs

ABOUT = (
    "parameters are counted; memory, disk and time are estimates: time from what matrix products just took here, "
    "shortest for a forward pass alone, longest with every observer on long rows"
)


def show_plan(model: str, reads: Reads, runs: Runs, device: str | None, as_json: bool) -> None:
    """What a measurement would take, on the terminal or as JSON."""
    from sinkscope.measuring.planning import GIB, plan

    found = plan(
        model,
        tokens=reads.tokens,
        samples=reads.samples,
        batch_size=runs.batch_size,
        dtype=runs.dtype,
        device=usable_device(device),
        revision=runs.revision,
        trust_remote_code=runs.trust_remote_code,
    )
    if as_json:
        show_json(found.to_dict())
        return
    low, high = found.seconds
    rows = [
        ("parameters", f"{found.parameters:,} in {found.dtype}"),
        ("memory on the device", f"{(found.weights + found.beside) / GIB:.2f} GiB"),
        ("  weights", f"{found.weights / GIB:.2f} GiB"),
        (f"  beside, {found.batch_size} samples at once", f"{found.beside / GIB:.2f} GiB"),
        ("download", f"{found.download / GIB:.2f} GiB" if found.download else "none: the weights are here"),
        ("results on disk", f"{found.results / 2**20:.1f} MiB"),
        (f"time on {found.device}, {reads.samples} samples", f"{low:.1f} to {high:.1f} s, beside loading"),
    ]
    show(table(("what it would take", ""), rows, numbers_from=2))
    show(plain(ABOUT))
