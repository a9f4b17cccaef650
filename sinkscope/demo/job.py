"""The demonstration from beginning to end."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from rich.text import Text
from transformers.utils.logging import disable_progress_bar

from sinkscope.data import prepare
from sinkscope.demo.children import children
from sinkscope.demo.closing import Closing, ending
from sinkscope.demo.live import EXPLANATION, watch
from sinkscope.demo.look import EPSILON, INPUTS, input_table, measure_model
from sinkscope.demo.plan import PATIENCE, DemoPlan
from sinkscope.measurement import Measurement
from sinkscope.report.demo_page import demo_page, evaluated, outcome, quick_outcome, quick_page
from sinkscope.report.page import Page, write_page
from sinkscope.report.runs import Seeds, StoredRun
from sinkscope.report.terminal import note, plain, show, table
from sinkscope.training import load_recipe

STORED = Path(__file__).parent / "curves.json"
"""Curves of trainings of `nano` with softmax and with sigmoid, by label, several seeds each."""


def run(plan: DemoPlan) -> Closing:
    """Run the demonstration in the plan's folder and return its closing numbers.

    Runs finished or begun there before are used and gone on with. Raises `ChildFailed` if training fails; whatever ends
    this function also ends the training processes.
    """
    began = time.monotonic()
    disable_progress_bar()  # of loading weights
    return _to_the_end(plan, began) if plan.seconds is None else _within(plan, began, plan.seconds)


def _to_the_end(plan: DemoPlan, began: float) -> Closing:
    inputs, look = _look(plan)
    note("Reading the corpus `python`: the sources of this interpreter and of the packages installed beside it.")
    folders, steps = _prepared(plan)
    note(f"Training {' and '.join(plan.attentions)} side by side, {steps:,} steps each.")
    with children(plan) as started:
        runs = watch(started, folders, steps)
    note("Measuring the trained models.")
    trained: dict[str, Measurement] = {}
    for name, folder in zip(plan.attentions, folders, strict=True):
        trained |= measure_model(folder, {"natural": name}, plan.out / "measurements" / name)
    page = demo_page(inputs, look, runs, trained, EPSILON)
    return _close(plan, began, page, inputs, dict(zip(folders, runs, strict=True)), outcome(runs))


def _within(plan: DemoPlan, began: float, seconds: float) -> Closing:
    # The training process starts first: it prepares the corpus while the shipped model is measured.
    with children(plan) as started:
        inputs, look = _look(plan)
        folders, steps = _prepared(plan)
        note(f"Training {plan.attentions[0]}, the beginning of a run of {steps:,} steps, for as long as time allows.")
        runs = watch(started, folders, steps, until=began + seconds, enough=evaluated, patience=PATIENCE)
    stored = stored_runs()
    live = replace(runs[0], label=f"{runs[0].label} (live)")
    page = quick_page(inputs, look, stored, live, EPSILON)
    return _close(plan, began, page, inputs, dict(zip(folders, runs, strict=True)), quick_outcome(stored, live))


def stored_runs() -> list[Seeds]:
    """The trainings with softmax and with sigmoid whose curves come with the package, over all their seeds."""
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    runs = {label: [_curves(run) for run in each] for label, each in stored.items()}
    return [Seeds(f"{label} (stored, mean of {len(each)})", each) for label, each in runs.items()]


def _curves(run: Mapping[str, Any]) -> StoredRun:
    rows = ({name: curve[index] for name, curve in run["curves"].items()} for index in range(len(run["steps"])))
    return StoredRun(run["run"], tuple({"step": step, **row} for step, row in zip(run["steps"], rows, strict=True)))


def _look(plan: DemoPlan) -> tuple[pd.DataFrame, dict[str, Measurement]]:
    """Measure the shipped model and show the table."""
    look = measure_model(plan.model, INPUTS, plan.out / "measurements" / "shipped")
    inputs = input_table(look)
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
    return inputs, look


def _prepared(plan: DemoPlan) -> tuple[list[Path], int]:
    """Where the runs will be, and their steps. Prepares their data, or waits for the process that does."""
    recipes = [load_recipe(plan.recipe, plan.overrides(attention)) for attention in plan.attentions]
    data = prepare(recipes[0].data, recipes[0].context, recipes[0].seed)
    return [plan.runs / recipe.folder(data.fingerprint) for recipe in recipes], recipes[0].steps


def _close(
    plan: DemoPlan, began: float, page: Page, inputs: pd.DataFrame, runs: Mapping[Path, StoredRun], sentence: str
) -> Closing:
    report = write_page(page, plan.out / "report.html")
    show(Text.assemble("\n", plain(sentence), style="bold"))
    show(plain(f"report: {report} ({report.stat().st_size / 1e6:.1f} MB, opens in a browser, no network needed)"))
    return Closing(
        quick=plan.seconds is not None,
        inputs=dict(zip(inputs["input"], inputs["sink_rate"], strict=True)),
        runs={run.label: ending(run, folder) for folder, run in runs.items()},
        report=str(report),
        seconds=round(time.monotonic() - began, 1),
    )
