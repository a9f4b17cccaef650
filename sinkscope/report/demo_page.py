"""The page of `sinkscope demo`, from its stored results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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


NO_SINK = 1.0  # percent: a sink rate below which no sink is said to have emerged


def demo_page(
    model: str,
    first: Sequence[Section],
    measured: Mapping[str, Measurement],
    stored: Sequence[Seeds],
    live: Sequence[StoredRun],
    epsilon: float,
    answer: Sequence[str] = (),
) -> Page:
    """What was found in a trained model, then its maps, then the live runs next to the stored ones.

    Args:
        model: Its name.
        first: Sections about it, from its report card or from several inputs.
        measured: Its measurements, drawn as maps.
        stored: Complete runs whose curves are part of the package.
        live: The runs that were trained here.
        epsilon: ε of all sink rates.
        answer: Sentences above everything else.
    """
    shown = [*(each.mean for each in stored), *(run for run in live if run.rows)]
    return Page(
        title=f"An attention sink, measured and watched: {model}",
        lead=(
            f"{model} was measured on this machine. The live runs are small language models that were trained here for "
            "minutes, by a recipe in which a sink emerges early (two heads a layer); the stored curves are of complete "
            "runs of nano (four heads), each the mean of several seeds. Softmax and sigmoid runs differ in nothing "
            "else. The sink rate is the percentage of (layer, head) pairs in which the first token receives more than "
            f"{epsilon:g} of the attention."
        ),
        headlines=[card for run in shown for card in _cards(run)],
        sections=[
            *first,
            *sections.describe({name: one.data for name, one in measured.items()}, epsilon),
            sections.training(shown, f"{outcome(stored, live)} {sections.ABOUT_TRAINING}"),
        ],
        provenance=facts(shown, {name: one.record for name, one in measured.items()}),
        answer=answer,
    )


def outcome(stored: Sequence[Seeds], live: Sequence[StoredRun]) -> str:
    """The results of the stored curves and of the live runs, in a few sentences."""
    wording = [*map(_ended, stored), *map(_reached, live)]
    rates = [run.last(SINK) for run in live if evaluated(run)]
    if rates and all(rate is not None and rate < NO_SINK for rate in rates):
        wording.append("No sink has emerged yet in what was trained here.")
    return " ".join(wording)


def _reached(run: StoredRun) -> str:
    if not evaluated(run):
        return f"The run {run.label} was stopped before its first evaluation."
    return f"The run {run.label} reached {_percent(run.last(SINK))} by step {run.step:,}: a beginning, not a result."


def evaluated(run: StoredRun) -> bool:
    """Whether a run has been evaluated after its first step."""
    return any(step > 0 for step in run.curve(SINK)[0])


def _ended(seeds: Seeds) -> str:
    mean, ends = seeds.mean, seeds.ends(SINK)
    onset = next((step for step, rate in zip(*mean.curve(SINK), strict=True) if rate > NO_SINK), None)
    passed = "" if onset is None else f", having passed 1 % at step {onset:,}"
    several = f", {ends[0]:.1f} to {ends[1]:.1f} % over {len(seeds.runs)} seeds" if ends and len(seeds.runs) > 1 else ""
    name = f"{seeds.label[:1].upper()}{seeds.label[1:]}"
    return f"{name} ended at {_percent(mean.last(SINK))}{several} after {mean.step:,} steps{passed}."


def _cards(run: StoredRun) -> list[Headline]:
    ratio = run.last(RATIO)
    cards = [Headline(_percent(run.last(SINK)), f"sink rate at position 0, {run.label}, step {run.step:,}")]
    if ratio is not None:
        cards.append(Headline(f"{ratio:.1f} ×", f"hidden norm of the first token against the others, {run.label}"))
    return cards


def _percent(value: float | None) -> str:
    return "no measured rate" if value is None else f"{value:.1f} %"
