"""`sinkscope measure --plan`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sinkscope.cli.options import usable_device
from sinkscope.report.terminal import plain, show, show_json, table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sinkscope.cli.given import Reads, Runs
    from sinkscope.measurement.planning import MeasuringPlan

ABOUT = (
    "parameters are counted; memory, disk and time are estimates: time from what matrix products just took here, "
    "shortest for a forward pass alone, longest with every observer on long rows"
)


def show_plans(
    models: Mapping[str, tuple[str, str | None]], reads: Reads, runs: Runs, device: str | None, as_json: bool
) -> None:
    """What measurements would take, on the terminal or as JSON; `models`: name and revision by label."""
    found = [_planned(name, reads, replace(runs, revision=revision), device) for name, revision in models.values()]
    if as_json:
        show_json(found[0].to_dict() if len(found) == 1 else {"plans": [plan.to_dict() for plan in found]})
        return
    for plan in found:
        _show(plan, reads)
    if len(found) > 1:
        low, high = (sum(plan.seconds[end] for plan in found) for end in (0, 1))
        show(plain(f"together {low:.1f} to {high:.1f} s, beside loading"))
    show(plain(ABOUT))


def _planned(model: str, reads: Reads, runs: Runs, device: str | None) -> MeasuringPlan:
    from sinkscope.measurement.planning import plan

    return plan(
        model,
        tokens=reads.tokens,
        samples=reads.samples,
        batch_size=runs.batch_size,
        dtype=runs.dtype,
        device=usable_device(device),
        revision=runs.revision,
        trust_remote_code=runs.trust_remote_code,
    )


def _show(found: MeasuringPlan, reads: Reads) -> None:
    from sinkscope.measurement.planning import GIB

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
    show(table((f"what {found.model} would take", ""), rows, numbers_from=2))
