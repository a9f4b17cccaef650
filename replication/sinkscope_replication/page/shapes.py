"""Figures of the page of findings whose shape is that of the claim: over time or positions; and which shape it is."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from matplotlib import rc_context

from sinkscope.report.experiments import ExperimentEntry
from sinkscope.report.experiments.doses import doses
from sinkscope.report.experiments.names import from_zero
from sinkscope.theme import PURPLE
from sinkscope_replication.page.equal_loss import compared_of, over_loss
from sinkscope_replication.page.figures import STYLE, dots, leading, metrics_of, written
from sinkscope_replication.page.over_doses import over_doses
from sinkscope_replication.page.panels import (
    color_of,
    curve_in,
    draw_lines,
    draw_marks,
    draw_name,
    draw_published,
    finished,
    head,
    labels_of,
    profile_in,
    side_by_side,
)
from sinkscope_replication.page.readings import over_readings, readings_of

PROFILES = ("sink_mass", "sink")  # of which a run has a number for each of the first positions
ELSEWHERE = re.compile(r"sink_(mass_)?[1-9]\d*|strongest_position")
LOSS = "validation_loss"
STEPS = "training step"


def drawing(entry: ExperimentEntry) -> str:
    """The figure that shows the first claim which runs bear on, as SVG; "" where no run has a value."""
    if compared_of(entry):
        return over_loss(entry)
    if curves_of(entry):
        return over_time(entry)
    if profile_of(entry):
        return over_positions(entry)
    if not metrics_of(entry):
        return ""
    if readings_of(entry):
        return over_readings(entry)
    return over_doses(entry) if doses(entry) else dots(entry)


def curves_of(entry: ExperimentEntry) -> list[str]:
    """The curves that the first claim reads of which runs have values, and the loss: none where it reads no curve."""
    lead = leading(entry)
    runs = [run for _, run in entry.runs]
    names = dict.fromkeys(name for followed in lead.curves.values() for name in followed) if lead else ()
    known = [name for name in names if any(run.curve(name) for run in runs)]
    losses = [LOSS] if known and LOSS not in known and any(LOSS in run.curves for run in runs) else []
    return [*known, *losses][:2]


def profile_of(entry: ExperimentEntry) -> dict[str, int]:
    """Metrics of the first positions by name, and the position: empty where the claims are about position 0 alone."""
    asked = [*entry.read, *entry.published]
    if not any(ELSEWHERE.fullmatch(metric) for metric in asked):
        return {}
    for kind in PROFILES:
        first = "sink_mass" if kind == "sink_mass" else "sink_0"
        names = {first: 0, **{f"{kind}_{position}": position for position in range(1, 17)}}
        known = {name: at for name, at in names.items() if any(not math.isnan(run[name]) for _, run in entry.runs)}
        if len(known) > 1 and (kind != "sink_mass" or _complete(entry, known)):
            return known
    return {}


def over_time(entry: ExperimentEntry) -> str:
    """Each curve over the steps: seeds thin, their mean thick, a color for each variation; published values beside."""
    names = curves_of(entry)
    labels = labels_of(entry)
    with rc_context(STYLE):
        figure, axes, beside = side_by_side(entry, len(names), labels)
        for index, (panel, name) in enumerate(zip(axes, names, strict=True)):
            lines = {label: [curve_in(run, name) for run in finished(entry, label)] for label in labels}
            draw_lines(panel, lines, f"ours-{index}")
            head(panel, f"ours: {entry.title(name)}", STEPS, zero=from_zero(name, entry.titles))
        draw_published(beside, entry, "sink_0", labels)
        return written(figure)


def over_positions(entry: ExperimentEntry) -> str:
    """The sink at each of the first positions, by variation; published values, of other models, beside."""
    names = profile_of(entry)
    labels = labels_of(entry)
    with rc_context(STYLE):
        figure, [panel], beside = side_by_side(entry, 1, labels)
        lines = {label: [profile_in(run, names) for run in finished(entry, label)] for label in labels}
        draw_lines(panel, lines, "ours-0", marks=True)
        what = "sink mass (%)" if "sink_mass" in names else "sink rate (%)"
        head(panel, f"ours: {what}, by position", "position")
        panel.set_xticks(range(0, max(names.values()) + 1, 2))
        if beside is not None:
            for index, label in enumerate(labels):
                given = next(each.published for each in entry.variations if each.label == label)
                points = [(at, given[f"sink_{at}"]) for at in range(17) if f"sink_{at}" in given]
                draw_marks(beside, points, color_of(index), f"published-{index}")
                draw_name(beside, points, label, color_of(index))
            head(beside, "published: sink rate (%), other models", "position", PURPLE)
            beside.set_xticks(range(4))
        return written(figure)


def _complete(entry: ExperimentEntry, known: Mapping[str, int]) -> bool:
    """Whether every variation with runs has one in which the profile was measured."""
    first = next(iter(known))
    return all(any(not math.isnan(run[first]) for run in finished(entry, label)) for label in labels_of(entry))
