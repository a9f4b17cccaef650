"""`sinkscope train`: a recipe becomes a trained model."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sinkscope.cli import options
from sinkscope.cli.command import When
from sinkscope.cli.options import BAD_INPUT
from sinkscope.files import check_writable
from sinkscope.report.terminal import flat, note, only_json, plain, show, show_json, table

if TYPE_CHECKING:
    from sinkscope.training import MeasuredStep, Recipe, Run
    from sinkscope.training.cost import Memory

Parallel = Literal["auto", "ddp", "fsdp"]
SEVERAL_PROCESSES = When(
    lambda values: values["parallel"] != "ddp" or "WORLD_SIZE" in os.environ,
    "goes with several processes: start them with torchrun",
)
FIGURE = "figure.html"  # loss and sink rate over steps, in the run's folder
NO_SINK = 1.0  # percent of heads: a lower sink rate is no sink


def train(
    recipe: Annotated[
        str,
        typer.Argument(metavar="RECIPE", help="A recipe's name (nano, micro, nano-sft, mini, 60m, 1b) or a YAML file."),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a field, such as optimizer.lr=1e-3; repeatable."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The parent folder of runs.")] = Path("runs"),
    resume: Annotated[bool, typer.Option("--resume", help="Continue an unfinished run of the same recipe.")] = False,
    parallel: Annotated[
        Parallel,
        typer.Option(
            metavar="auto|ddp|fsdp",
            help="Under torchrun: the whole model on every process (ddp), or spread over GPUs (fsdp). "
            "auto: as accelerate launch was configured, else ddp.",
        ),
        SEVERAL_PROCESSES,
    ] = "auto",
    plan_only: options.PlanOnly = False,
    as_json: options.AsJson = False,
) -> None:
    """Train a model from a recipe and watch loss and sink rate. Under torchrun, all processes train one model."""
    from sinkscope.training import ReportedElsewhere

    try:
        _train(recipe, overrides or (), out, resume, plan_only, parallel, as_json)
    except ReportedElsewhere as refused:  # the main process prints the reason
        raise typer.Exit(BAD_INPUT) from refused


def _train(
    recipe: str, overrides: Sequence[str], out: Path, resume: bool, plan_only: bool, parallel: str, as_json: bool
) -> None:
    from sinkscope.training import joined, keep_freed_memory, load_recipe, resolved_device
    from sinkscope.training import train as run_training

    processes = joined(resolved_device("auto"))
    resolved = processes.together(lambda: load_recipe(recipe, overrides))
    if plan_only:
        plan = processes.from_main(lambda: plan_training(resolved))
        if processes.main:
            _show_plan(plan, as_json)
        return
    processes.from_main(lambda: check_writable(out))
    keep_freed_memory()  # this process is ours; a caller of `train` decides for itself
    with only_json(as_json):
        run = run_training(resolved, out=out, resume=resume, progress=True, parallel=parallel)
    processes.leave()
    if processes.main:
        _show_run(run, as_json)


def _show_run(run: Run, as_json: bool) -> None:
    from sinkscope.report.writing import write_report
    from sinkscope.training import LOG, read_rows

    last = read_rows(run.path / LOG)[-1]
    write_report(run, run.path / FIGURE)
    if as_json:
        show_json({"run": str(run.path), "record": run.record, "last": last, "figure": str(run.path / FIGURE)})
        return
    for line in summary_of_run(last, run.record, str(run.path)):
        show(plain(line))
    note(f"next: sinkscope measure {run.path}")


def summary_of_run(last: Mapping[str, Any], record: Mapping[str, Any], folder: str) -> list[str]:
    """A finished run in four lines: loss, sink, time, folder. `last` is the last row of its log."""
    losses = [f"{name.replace('_', ' ')} {last[name]:.3f}" for name in ("loss", "validation_loss") if name in last]
    minutes = record.get("seconds", math.nan) / 60
    return [
        f"step {last['step']}: {', '.join(losses)} nats",
        sink_of(last),
        f"time: {minutes:.1f} min" if math.isfinite(minutes) else "time: unknown",
        f"run folder: {folder} ({FIGURE} draws loss and sink, log.jsonl has every row)",
    ]


def sink_of(last: Mapping[str, Any]) -> str:
    """Where the sink is and how strong; "none yet" below one percent of heads."""
    rate, position = last.get("sink/strongest"), last.get("sink/strongest_position")
    if rate is None or position is None or not math.isfinite(rate):
        return "sink: not measured"
    if rate < NO_SINK:
        return f"sink: none yet (no position is one in {NO_SINK:g} % of heads)"
    return f"sink: position {position:.0f}, in {rate:.1f} % of heads"


@dataclass(frozen=True)
class TrainingPlan:
    """What a recipe would take. Counts are exact; `memory` (of one process) and `flops` are estimated by formula.

    `here`: a step timed on this machine's processors, and the time of the whole run that follows from it.
    """

    recipe: dict[str, Any]
    parameters: int
    tokens: int
    tokens_per_step: int
    corpus: str
    memory: Memory
    flops: int
    here: MeasuredStep

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "memory_bytes": self.memory.total}

    def facts(self) -> list[tuple[str, str]]:
        """Rows of a table for people."""
        parts = {name: value for name, value in asdict(self.memory).items() if value}
        return [
            ("parameters", f"{self.parameters:,}"),
            ("tokens", f"{self.tokens:,} ({self.tokens_per_step:,} a step)"),
            ("corpus", self.corpus),
            ("arithmetic, estimated", f"{self.flops:.2g} FLOP"),
            (
                f"time on these processors ({self.here.threads} thread{'' if self.here.threads == 1 else 's'})",
                f"{_times(*self.here.total)}, from a step of {self.here.tokens} tokens that took "
                f"{self.here.seconds[0]:.2g} s",
            ),
            ("memory, estimated", f"{_bytes(self.memory.total)} in one process"),
            *((f"  {name}", _bytes(value)) for name, value in parts.items()),
        ]


def plan_training(recipe: Recipe) -> TrainingPlan:
    """Build a recipe's model on the meta device, count, and estimate; neither trains nor reads the corpus."""
    import torch

    from sinkscope.model import LabConfig, LabForCausalLM
    from sinkscope.training import measured_step
    from sinkscope.training.cost import flops_per_token, memory

    config = LabConfig(
        **{"vocab_size": recipe.model.get("vocab_size") or _vocabulary(recipe), **recipe.model},
        attention=recipe.operation,
        max_position_embeddings=recipe.context,
    )
    with torch.device("meta"):
        model = LabForCausalLM(config)
    tokens_per_step = recipe.batch_size * recipe.context
    tokens = tokens_per_step * recipe.steps
    return TrainingPlan(
        recipe=recipe.model_dump(mode="json"),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        tokens=tokens,
        tokens_per_step=tokens_per_step,
        corpus=recipe.data.corpus,
        memory=memory(recipe, model),
        flops=tokens * flops_per_token(model, config, recipe.context),
        here=measured_step(config, recipe.context, tokens),
    )


def _vocabulary(recipe: Recipe) -> int:
    """The size of the vocabulary, with the mask token if tokens are masked."""
    from sinkscope.data import load_fast_tokenizer, parse_tokenizer, with_mask

    size, masked = parse_tokenizer(recipe.data.tokenizer), recipe.loss.masked is not None
    if size is not None:
        return size + masked
    tokenizer = load_fast_tokenizer(recipe.data.tokenizer)
    return len(with_mask(tokenizer) if masked else tokenizer)


def _show_plan(plan: TrainingPlan, as_json: bool) -> None:
    if as_json:
        show_json(plan.to_dict())
        return
    show(table(("recipe", ""), flat(plan.recipe), numbers_from=2))
    show(plain(""))
    show(table(("what it would take", ""), plan.facts()))


def _bytes(value: int) -> str:
    return f"{value / 2**30:.2f} GiB" if value < 10 * 2**30 else f"{value / 2**30:.0f} GiB"


def _times(shortest: float, longest: float) -> str:
    units = (("days", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    unit, length = next((pair for pair in units if longest >= 2 * pair[1]), units[-1])
    low, high = (f"{seconds / length:,.{0 if longest >= 10 * length else 1}f}" for seconds in (shortest, longest))
    return f"{low} – {high} {unit}"
