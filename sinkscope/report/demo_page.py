"""The page of `sinkscope demo`, from its stored results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from sinkscope.measurement import Measurement
from sinkscope.report import sections
from sinkscope.report.curves import RATIO, SINK
from sinkscope.report.page import Headline, Page, Section
from sinkscope.report.provenance import facts
from sinkscope.report.runs import Seeds, StoredRun

ABOUT_INPUTS = (
    "One trained model, three kinds of input. Natural text begins with the token that was first in all of its "
    "training; random and repeated tokens begin with whatever was drawn. This model's sink belongs to that first "
    "token: without it there is none, and among equal tokens none differs from the others."
)


def demo_page(
    inputs: pd.DataFrame,
    look: Mapping[str, Measurement],
    runs: Sequence[StoredRun],
    trained: Mapping[str, Measurement],
    epsilon: float,
) -> Page:
    """The full demonstration: `look` is the shipped model on several inputs, `trained` the models of `runs`."""
    return Page(
        title=f"When an attention sink emerges: {' and '.join(run.label for run in runs)}",
        lead=(
            "Two language models of the same size were trained on the same text in the same order. They differ in one "
            "thing: how scores become attention. The sink rate is the percentage of (layer, head) pairs in which the "
            f"first token receives more than {epsilon:g} of the attention."
        ),
        headlines=[card for run in runs for card in _cards(run)],
        sections=[
            sections.training(runs, f"{outcome(runs)} {sections.ABOUT_TRAINING}"),
            *_described(trained, epsilon),
            sections.inputs(inputs, ABOUT_INPUTS),
        ],
        provenance=_facts(runs, {**look, **trained}),
    )


def quick_page(
    inputs: pd.DataFrame,
    look: Mapping[str, Measurement],
    stored: Sequence[Seeds],
    live: StoredRun,
    epsilon: float,
) -> Page:
    """The quick demonstration: stored curves, the beginning of a live run, and maps of the first of `look`."""
    means = [each.mean for each in stored]
    shown = [*means, live] if live.rows else means
    first = next(iter(look))
    return Page(
        title="An attention sink, measured and watched: the quick look",
        lead=(
            "A small language model that comes with sinkscope, measured on this machine. The curves of complete runs "
            "were stored, each the mean of several seeds; only the beginning of the live run was trained here. The "
            "sink rate is the percentage of (layer, head) pairs in which the first token receives more than "
            f"{epsilon:g} of the attention."
        ),
        headlines=[card for run in shown for card in _cards(run)],
        sections=[
            sections.inputs(inputs, ABOUT_INPUTS),
            sections.training(shown, f"{quick_outcome(stored, live)} {sections.ABOUT_TRAINING}"),
            *_described({first: look[first]}, epsilon),
        ],
        provenance=_facts(shown, look),
    )


def outcome(runs: Sequence[StoredRun]) -> str:
    """The final sink rates of the runs, in a sentence."""
    parts = [f"{run.label} ended at {_percent(run.last(SINK))} after {run.step:,} steps" for run in runs]
    return f"Sink rate at position 0: {'; '.join(parts)}."


def quick_outcome(stored: Sequence[Seeds], live: StoredRun) -> str:
    """The results of the stored curves and of the live run, in a few sentences."""
    wording = " ".join(map(_ended, stored))
    if not evaluated(live):
        return f"{wording} The live run was stopped before its first evaluation."
    reached = _percent(live.last(SINK))
    return f"{wording} The live run was stopped at step {live.step:,}, at {reached}: a beginning, not a result."


def evaluated(run: StoredRun) -> bool:
    """Whether a run has been evaluated after its first step."""
    return any(step > 0 for step in run.curve(SINK)[0])


def _ended(seeds: Seeds) -> str:
    mean, ends = seeds.mean, seeds.ends(SINK)
    onset = next((step for step, rate in zip(*mean.curve(SINK), strict=True) if rate > 1), None)
    passed = "" if onset is None else f", having passed 1 % at step {onset:,}"
    several = f", {ends[0]:.1f} to {ends[1]:.1f} % over {len(seeds.runs)} seeds" if ends and len(seeds.runs) > 1 else ""
    name = f"{seeds.label[:1].upper()}{seeds.label[1:]}"
    return f"{name} ended at {_percent(mean.last(SINK))}{several} after {mean.step:,} steps{passed}."


def _cards(run: StoredRun) -> list[Headline]:
    ratio = run.last(RATIO)
    cards = [Headline(_percent(run.last(SINK)), f"sink rate at position 0, {run.label}, step {run.step:,}")]
    return (
        cards
        if ratio is None
        else [*cards, Headline(f"{ratio:.1f} ×", f"hidden norm of the first token against the others, {run.label}")]
    )


def _described(measurements: Mapping[str, Measurement], epsilon: float) -> list[Section]:
    return sections.describe({name: measured.data for name, measured in measurements.items()}, epsilon)


def _facts(runs: Sequence[StoredRun], measurements: Mapping[str, Measurement]) -> dict[str, str]:
    return facts(runs, {name: measured.record for name, measured in measurements.items()})


def _percent(value: float | None) -> str:
    return "no measured rate" if value is None else f"{value:.1f} %"
