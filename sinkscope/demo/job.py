"""The demonstration from beginning to end."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from rich.text import Text
from transformers.utils.logging import disable_progress_bar

from sinkscope.data import build_inputs, prepare
from sinkscope.demo.children import children
from sinkscope.demo.live import EXPLANATION, watch
from sinkscope.demo.plan import PATIENCE, DemoPlan
from sinkscope.interventions import load
from sinkscope.measurement import Measurement, measure, rate_at
from sinkscope.model import load_tokenizer
from sinkscope.report.curves import RATIO, SINK, VALIDATION_LOSS
from sinkscope.report.demo_page import demo_page, evaluated, outcome, quick_outcome, quick_page
from sinkscope.report.page import Page, write_page
from sinkscope.report.runs import Seeds, StoredRun
from sinkscope.report.terminal import note, plain, show, table
from sinkscope.training import load_recipe

TOKENS, SAMPLES, EPSILON, SEED = 64, 100, 0.3, 0
INPUTS = {"natural": "natural text", "random": "random tokens", "repeated": "repeated token"}
STORED = Path(__file__).parent / "curves.json"
"""Training curves of `nano` with softmax and with sigmoid, by label, several seeds each."""


@dataclass(frozen=True)
class LastStep:
    """The state of a run at the end; None for what was not measured yet."""

    run: str
    step: int
    sink_rate: float | None
    validation_loss: float | None
    hidden_norm_ratio: float | None


@dataclass(frozen=True)
class DemoResult:
    """Sink rates of the shipped model by input, the last steps of the runs, the page, and the time taken."""

    quick: bool
    inputs: dict[str, float]
    runs: dict[str, LastStep]
    report: str
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def run(plan: DemoPlan) -> DemoResult:
    """Run the demonstration in the plan's folder and return its numbers.

    Runs that were finished or begun there before are used and continued. Raises `ChildFailed` if training fails; the
    training processes end with this function, however it ends.
    """
    began = time.monotonic()
    disable_progress_bar()  # of loading weights
    return _run_fully(plan, began) if plan.seconds is None else _run_within(plan, began, plan.seconds)


def _run_fully(plan: DemoPlan, began: float) -> DemoResult:
    inputs, shipped = _measure_shipped(plan)
    note("Reading the corpus `python`: the sources of this interpreter and of the installed packages.")
    folders, steps = _prepare_runs(plan)
    note(f"Training {' and '.join(plan.attentions)} in parallel, {steps:,} steps each.")
    with children(plan) as started:
        runs = watch(started, folders, steps)
    note("Measuring the trained models.")
    trained: dict[str, Measurement] = {}
    for name, folder in zip(plan.attentions, folders, strict=True):
        trained |= measure_model(folder, {"natural": name}, plan.out / "measurements" / name)
    page = demo_page(inputs, shipped, runs, trained, EPSILON)
    return _finish(plan, began, page, inputs, dict(zip(folders, runs, strict=True)), outcome(runs))


def _run_within(plan: DemoPlan, began: float, seconds: float) -> DemoResult:
    # The training process starts first: it prepares the corpus while the shipped model is measured.
    with children(plan) as started:
        inputs, shipped = _measure_shipped(plan)
        folders, steps = _prepare_runs(plan)
        note(f"Training {plan.attentions[0]}, the beginning of a run of {steps:,} steps, for as long as time allows.")
        runs = watch(started, folders, steps, until=began + seconds, enough=evaluated, patience=PATIENCE)
    stored = stored_runs()
    live = replace(runs[0], label=f"{runs[0].label} (live)")
    page = quick_page(inputs, shipped, stored, live, EPSILON)
    return _finish(plan, began, page, inputs, dict(zip(folders, runs, strict=True)), quick_outcome(stored, live))


def stored_runs() -> list[Seeds]:
    """The training runs with softmax and with sigmoid whose curves are part of the package, with all their seeds."""
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    runs = {label: [_curves(run) for run in each] for label, each in stored.items()}
    return [Seeds(f"{label} (stored, mean of {len(each)})", each) for label, each in runs.items()]


def _curves(run: Mapping[str, Any]) -> StoredRun:
    rows = ({name: curve[index] for name, curve in run["curves"].items()} for index in range(len(run["steps"])))
    return StoredRun(run["run"], tuple({"step": step, **row} for step, row in zip(run["steps"], rows, strict=True)))


def measure_model(model: str | Path, kinds: dict[str, str], folder: Path) -> dict[str, Measurement]:
    """Measure a model on these kinds of input, each with a name; the measurements are stored in `folder`."""
    subject, tokenizer = load(model), load_tokenizer(model)
    measurements = {}
    for kind, name in kinds.items():
        inputs = build_inputs(
            kind,
            tokenizer=tokenizer,
            vocab_size=subject.config.vocab_size,
            tokens=TOKENS,
            samples=SAMPLES,
            seed=SEED,
        )
        about = {"kind": kind, "description": inputs.description, "first": inputs.first, "seed": SEED}
        measurements[name] = measure(subject, inputs.input_ids, batch_size=50, about=about)
        measurements[name].save(folder / f"{kind}.nc")
    return measurements


def input_table(measurements: dict[str, Measurement]) -> pd.DataFrame:
    """One row per input: first token, sink rate at position 0 with its interval, largest hidden-norm ratio."""
    rows = []
    for name, measurement in measurements.items():
        rate = rate_at(measurement.data, EPSILON)
        rows.append(
            {
                "input": name,
                "first": measurement.record["input"]["first"],
                "sink_rate": round(rate.value, 2),
                "low": round(rate.low, 2),
                "high": round(rate.high, 2),
                "hidden norm ratio": round(float(measurement.hidden_norm_ratio().max()), 2),
            }
        )
    return pd.DataFrame(rows)


def _measure_shipped(plan: DemoPlan) -> tuple[pd.DataFrame, dict[str, Measurement]]:
    """Measure the shipped model and show the table."""
    measurements = measure_model(plan.model, INPUTS, plan.out / "measurements" / "shipped")
    inputs = input_table(measurements)
    rows = [
        (
            row.input,
            row.first,
            f"{row.sink_rate:.1f}",
            f"{row.low:.1f} – {row.high:.1f}",
            f"{row.hidden_norm_ratio:.1f}",
        )
        for row in inputs.rename(columns={"hidden norm ratio": "hidden_norm_ratio"}).itertuples()
    ]
    show(Text(f"The shipped model {plan.model}", "bold"))
    show(table(("input", "at position 0", "sink rate, %", "95 % interval", "hidden norm ×"), rows, numbers_from=2))
    show(plain(f"{EXPLANATION}\n"))
    return inputs, measurements


def _prepare_runs(plan: DemoPlan) -> tuple[list[Path], int]:
    """The folders of the runs, and their steps. Prepares their data, or waits for the process that does."""
    recipes = [load_recipe(plan.recipe, plan.overrides(attention)) for attention in plan.attentions]
    data = prepare(recipes[0].data, recipes[0].context, recipes[0].seed)
    return [plan.runs / recipe.folder(data.fingerprint) for recipe in recipes], recipes[0].steps


def _finish(
    plan: DemoPlan, began: float, page: Page, inputs: pd.DataFrame, runs: Mapping[Path, StoredRun], sentence: str
) -> DemoResult:
    """Write the page, show the outcome, and return the numbers.

    Args:
        plan: What ran.
        began: When, on the monotonic clock.
        page: The page to write.
        inputs: The table of the shipped model.
        runs: The runs by their folders.
        sentence: The outcome in words.
    """
    report = write_page(page, plan.out / "report.html")
    show(Text.assemble("\n", plain(sentence), style="bold"))
    show(plain(f"report: {report} ({report.stat().st_size / 1e6:.1f} MB, opens in a browser without a network)"))
    return DemoResult(
        quick=plan.seconds is not None,
        inputs=dict(zip(inputs["input"], inputs["sink_rate"], strict=True)),
        runs={
            run.label: LastStep(str(folder), run.step, run.last(SINK), run.last(VALIDATION_LOSS), run.last(RATIO))
            for folder, run in runs.items()
        },
        report=str(report),
        seconds=round(time.monotonic() - began, 1),
    )
