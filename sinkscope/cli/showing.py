"""The terminal of a command: what it would cost, how far it is, and the verdict of a trial."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkscope.cli.opening import usable_device
from sinkscope.live import duration, left
from sinkscope.names import short
from sinkscope.report.terminal import plain, show, show_json, stderr, table

if TYPE_CHECKING:
    from sinkscope.cli.options import RunningOptions, SamplingOptions
    from sinkscope.measurement import Measurement
    from sinkscope.measurement.planning import MeasuringPlan
    from sinkscope.trials import Trial


ABOUT_PLAN = (
    "parameters are counted; memory, disk and time are estimates: time from what matrix products just took here, "
    "shortest for a forward pass alone, longest with every observer on long rows"
)


@contextmanager
def watching() -> Iterator[Callable[[int, int, str], None]]:
    """A progress bar with the news; in a pipe, one line every ten seconds. Yields `watch(done, total, news)`.

    A total that changes, or fewer readings than before, begin a new stage. The time left is at the pace since a stage's
    first news, so that neither what was prepared nor what an interrupted run left count.
    """
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from sinkscope.live import pulse

    columns = (BarColumn(bar_width=30), TaskProgressColumn(), TimeRemainingColumn())
    label = TextColumn("{task.description}", markup=False)
    console = stderr()
    began, first = time.monotonic(), 0
    state = (0, 0, "")

    def line() -> str:
        done, total, news = state
        if not total:
            return f"preparing, for {time.monotonic() - began:.0f} s"
        return f"{left(done, total, began, first)} ({done} of {total} readings){'; ' + news if news else ''}"

    with ExitStack() as shown:
        if not console.is_terminal:
            shown.enter_context(pulse(line, lambda text: console.print(plain(text), soft_wrap=True)))
        bar = Progress(*columns, label, console=console, transient=True, disable=not console.is_terminal)
        shown.enter_context(bar)
        task = bar.add_task("preparing", total=None)

        def watch(done: int, total: int, news: str) -> None:
            nonlocal began, first, state
            if total != state[1] or done < state[0]:
                began, first = time.monotonic(), done
                bar.reset(task, total=total)
            state = done, total, news
            bar.update(task, completed=done, total=total, description=news)

        yield watch


@dataclass(frozen=True)
class Cost:
    """What a trial would take: passes over a text, seconds, and bytes of memory of this process with one batch."""

    readings: int
    seconds: float
    memory: int

    def __str__(self) -> str:
        return (
            f"about {duration(max(1, self.seconds))} and {self.memory / 2**30:.1f} GiB of memory, estimated from one "
            f"batch ({self.readings:,} readings of a text)"
        )


def estimate_cost(model: Any, inputs: Mapping[str, Any], readings: float, batch_size: int) -> Cost:
    """The cost of `readings` readings of a text, from one batch that is timed after a warm-up."""
    import torch

    from sinkscope.hooks import device_of, part

    count = len(next(iter(inputs.values())))
    size, device = min(batch_size, count), device_of(model)
    batch = part(inputs, slice(0, size), count, device)
    with torch.no_grad():
        seconds = []
        for _ in range(2):  # the first pass of a process takes longer
            began = time.perf_counter()
            model(**batch)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - began)
    return Cost(round(readings), min(seconds) / size * readings, peak_memory(model))


def peak_memory(model: Any) -> int:
    """The highest memory use so far, in bytes: of the model's GPU, or of this process."""
    import resource

    import torch

    from sinkscope.hooks import device_of

    if (device := device_of(model)).type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def show_cost(cost: Cost, as_json: bool, **facts: object) -> None:
    """The answer to --plan."""
    if as_json:
        show_json({**facts, **asdict(cost)})
    else:
        show(plain(str(cost)))


def show_plans(
    models: Mapping[str, str | None], sampling: SamplingOptions, running: RunningOptions, as_json: bool
) -> None:
    """The answer to --plan for each model, by name, at a revision."""
    from sinkscope.measurement.planning import plan

    plans = [
        plan(
            name,
            tokens=sampling.tokens,
            samples=sampling.samples,
            batch_size=running.batch_of(sampling.tokens),
            dtype=running.dtype,
            device=usable_device(running.device),
            revision=revision,
            trust_remote_code=running.trust_remote_code,
        )
        for name, revision in models.items()
    ]
    if as_json:
        show_json(plans[0].to_dict() if len(plans) == 1 else {"plans": [each.to_dict() for each in plans]})
        return
    for each in plans:
        _show_plan(each, sampling.samples)
    if len(plans) > 1:
        low, high = (sum(each.seconds[end] for each in plans) for end in (0, 1))
        show(plain(f"together {low:.1f} to {high:.1f} s, without loading"))
    show(plain(ABOUT_PLAN))


def _show_plan(plan: MeasuringPlan, samples: int) -> None:
    from sinkscope.measurement.planning import GIB

    low, high = plan.seconds
    rows = [
        ("parameters", f"{plan.parameters:,} in {plan.dtype}"),
        ("memory on the device", f"{(plan.weights + plan.beside) / GIB:.2f} GiB"),
        ("  weights", f"{plan.weights / GIB:.2f} GiB"),
        (f"  activations of {plan.batch_size} samples at once", f"{plan.beside / GIB:.2f} GiB"),
        ("download", f"{plan.download / GIB:.2f} GiB" if plan.download else "none: the weights are here"),
        ("results on disk", f"{plan.results / 2**20:.1f} MiB"),
        (f"time on {plan.device}, {samples} samples", f"{low:.1f} to {high:.1f} s, without loading"),
    ]
    show(table((f"what {short(plan.model)} would take", ""), rows, numbers_from=2))


def show_trial(
    trial: Trial,
    paths: Sequence[Path],
    *,
    as_json: bool,
    explain: bool = False,
) -> None:
    """Print the verdict, the table, and where everything is; or JSON."""
    if as_json:
        show_json(trial.to_json())
        return
    from sinkscope.report.trial_page import rows
    from sinkscope.trials import explained

    show(plain(trial.verdict))
    show(table(*rows(trial)))
    if explain:
        show(plain(explained(trial.tolerance)))
    show_written(paths)


def show_written(paths: Sequence[Path]) -> None:
    """Print where the files are; the folder of the first is named once."""
    folder = paths[0].parent
    others = [str(path.relative_to(folder) if path.is_relative_to(folder) else path) for path in paths[1:]]
    show(plain(f"written: {paths[0]}{', and in its folder ' if others else ''}{', '.join(others)}"))


def summary_json(measurement: Measurement, model: str, kind: str, epsilon: float) -> dict[str, Any]:
    """The JSON of one model on one input."""
    summary = measurement.to_json(epsilon)
    return {**summary, "model": model, "input": kind, "input_details": summary["input"]}


def size_in_words(count: float) -> str:
    """Bytes in the unit that leaves one to four digits: 2.9 MiB, 3,070 KiB."""
    unit, power = ("MiB", 20) if count >= 10 * 2**20 else ("KiB", 10)
    value = count / 2**power
    return f"{value:,.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}"
