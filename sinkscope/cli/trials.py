"""What commands that run a trial have in common: the bar, the files, what is printed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkscope.cli.measuring.folders import FILES, Kind, old_files
from sinkscope.report.terminal import plain, show, show_json, stderr, table

if TYPE_CHECKING:
    from sinkscope.quantization import Hazards
    from sinkscope.trials import Trial


@contextmanager
def watching() -> Iterator[Callable[[int, int, str], None]]:
    """A bar over the texts that arms read, with what was found so far; in a pipe a line every ten seconds."""
    import time

    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from sinkscope.live import left, pulse

    columns = (BarColumn(bar_width=30), TaskProgressColumn(), TimeRemainingColumn())
    label = TextColumn("{task.description}", markup=False)
    console = stderr()
    began, state = time.monotonic(), (0, 0, "")

    def line() -> str:
        done, total, said = state
        if not total:
            return f"preparing, for {time.monotonic() - began:.0f} s"
        return f"{left(done, total, began)} ({done} of {total} readings){'; ' + said if said else ''}"

    with ExitStack() as shown:
        if not console.is_terminal:
            shown.enter_context(pulse(line, lambda text: console.print(plain(text), soft_wrap=True)))
        bar = Progress(*columns, label, console=console, transient=True, disable=not console.is_terminal)
        shown.enter_context(bar)
        task = bar.add_task("preparing", total=None)

        def watch(done: int, total: int, said: str) -> None:
            nonlocal state
            state = done, total, said
            bar.update(task, completed=done, total=total, description=said)

        yield watch


@dataclass(frozen=True)
class Cost:
    """What a trial would take: passes over a text, seconds, and the memory (bytes) of this process with one batch."""

    readings: int
    seconds: float
    memory: int

    def __str__(self) -> str:
        from sinkscope.live import duration

        return (
            f"about {duration(max(1, self.seconds))} and {self.memory / 2**30:.1f} GiB of memory, estimated from one "
            f"batch ({self.readings:,} readings of a text)"
        )


def cost_of(model: Any, inputs: Mapping[str, Any], readings: float, batch_size: int) -> Cost:
    """Time one batch, after a warm-up on it, and multiply."""
    import time

    import torch

    from sinkscope.hooks import device_of, part

    count = len(next(iter(inputs.values())))
    size, device = min(batch_size, count), device_of(model)
    batch = part(inputs, slice(0, size), count, device)
    with torch.no_grad():
        taken = []
        for _ in range(2):  # the first pass of a process takes longer
            began = time.perf_counter()
            model(**batch)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            taken.append(time.perf_counter() - began)
    return Cost(round(readings), min(taken) / size * readings, peak(model))


def peak(model: Any) -> int:
    """The most memory so far, in bytes: on the model's GPU, or of this process."""
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


def about(command: Kind, **facts: object) -> dict[str, object]:
    """What a command adds to a trial's record."""
    return {"command": command, **facts}


def write_trial(
    trial: Trial,
    kind: Kind,
    folder: Path,
    *,
    hazards: Hazards | None = None,
    extra: Callable[[Path], None] | None = None,
) -> list[Path]:
    """Write numbers, table and page in place of an earlier trial's; `extra` adds a command's own files."""
    from sinkscope.files import replacing, write_json, write_text
    from sinkscope.report.page import write_page
    from sinkscope.report.trial_page import trial_page

    page = trial_page(trial, hazards=hazards)
    with replacing(folder, partial(old_files, kind)) as draft:
        trial.save(draft / "trial.nc")
        write_json(draft / "trial.json", trial.to_json())
        write_text(draft / "table.csv", trial.table(full=True).to_csv(index=False))
        write_page(page, draft / "figure.html")
        if extra is not None:
            extra(draft)
    return [folder / name for name in FILES[kind] if (folder / name).exists()]


def show_trial(
    trial: Trial,
    paths: Sequence[Path],
    *,
    as_json: bool,
    explain: bool = False,
) -> None:
    """The answer first, then the table, then where everything is."""
    if as_json:
        show_json(trial.to_json())
        return
    from sinkscope.report.trial_page import rows
    from sinkscope.trials import explained

    show(plain(trial.verdict))
    show(table(*rows(trial)))
    if explain:
        show(plain(explained(trial.tolerance)))
    show(plain(f"written: {', '.join(map(str, paths))}"))
