"""Is my int8 recipe safe: ranges by token as servers have them, then by tensor and static as NPUs have them.

What costs is rescued, on the first set of texts: the fewest maps in 16 bits, and the fewest tokens, that give it back.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from sinkscope.checks.grid import on_four_bits
from sinkscope.checks.modules import module_rows
from sinkscope.checks.row import ADVISED, Answered, Row
from sinkscope.checks.section import CheckSection, Progress
from sinkscope.checks.subject import CheckedModel, TextSet
from sinkscope.errors import InputError
from sinkscope.quantization import hazards
from sinkscope.statistics import mean_interval
from sinkscope.trials import Rescue, Trial, rescue, scheme_trial

RANGES = ("token", "tensor", "static")
PROTECT = "measured+outliers"
ALONE = 16  # bits of weights that stay as they are
STATIC = "static range (NPU, ONNX, TensorRT)"
WORST = 2  # sites that are named
RUNS, RESCUED = 14, 12  # passes over the texts of a rescue, and how many texts
WHAT: tuple[Literal["maps", "tokens"], ...] = ("maps", "tokens")
LOST = ("costs", "breaks")


def applies(subject: CheckedModel) -> str:
    """Empty for a causal decoder."""
    return subject.decodes()


def run_section(subject: CheckedModel, texts: TextSet, progress: Progress | None) -> Answered:
    """What rounding to 8 bits costs with each kind of range, and what protecting tokens recovers."""
    alone = on_four_bits(subject.model) > 0.9
    rows: list[Row] = []
    said: list[str] = []
    lost: dict[str, str] = {}  # schemes that are not safe, as they are shown
    for number, ranges in enumerate(RANGES):
        scheme = f"w{ALONE if alone else 8}a8-{ranges}"
        shown = f"a8-{ranges}" if alone else scheme

        def watch(done: int, total: int, found: str, number: int = number) -> None:
            if progress is not None:
                progress(number * total + done, len(RANGES) * total, found)

        try:
            trial = scheme_trial(
                subject.model,
                texts.ids,
                scheme,
                PROTECT,
                subject.controls,
                calibrate_on=texts.choosing,
                batch_size=subject.batch_size,
                seed=subject.seed,
                progress=watch,
            )
        except InputError as error:
            said.append(f"{shown}: {error}")
            continue
        own = _rows(trial, scheme, shown)
        rows += own
        lost |= {scheme: shown} if own[0].word in LOST else {}
        where = f"under a {STATIC} " if number == 1 else ""
        said.append(f"{where}{shown} {own[0].word}{_rescued(own)}")
    costly, rankings = module_rows(subject, texts, progress)
    rows += costly
    if costly and costly[0].number is not None:
        said.append(f"dearest map alone: {costly[0].key.removeprefix('alone:')} (KL {costly[0].number.value:.3f})")
    rescued = {
        shown: _rescue(subject, texts, scheme, progress) for scheme, shown in lost.items() if texts is subject.sets[0]
    }
    for shown, found in rescued.items():
        own = _rescue_rows(found, shown)
        rows += own
        said += [f"{row.finding} {row.why}" for row in own]
    what = "Activations alone are rounded, since the weights lie on a 4-bit grid: " if alone else ""
    facts: dict[str, Any] = {"activations_alone": alone, **rankings}
    facts |= {"rescue": {shown: _kept(found) for shown, found in rescued.items()}} if rescued else {}
    return Answered(f"{what}{'; '.join(said)}. {_worst(subject, texts)}".strip(), tuple(rows), facts)


def _rows(trial: Trial, scheme: str, shown: str) -> list[Row]:
    found = []
    tokens = trial.record["arms"].get(PROTECT, {}).get("tokens_per_text")
    for arm in [arm for arm in (scheme, PROTECT) if arm in trial.arms]:
        grade = trial.grade(arm)
        why = grade.why
        finding = shown
        advice = f"{shown} is safe" if grade.word in ADVISED and arm == scheme else ""
        if arm == PROTECT:
            back = trial.recovered(arm, of=scheme)
            finding = f"{shown}, {tokens:.1f} tokens kept" if tokens is not None else f"{shown}, tokens kept"
            if np.isfinite(back.value):
                why = f"gives back {100 * back.value:.0f} % ({100 * back.low:.0f} to {100 * back.high:.0f})"
            if trial.controls(arm) and trial.difference(arm).high >= 0:
                why = "; ".join(filter(None, (why, "no more than random tokens")))
            if grade.word in ADVISED and trial.word(scheme) not in ADVISED:
                advice = f"{shown} with sinks and outliers in full precision"
        found.append(
            Row(
                f"{shown}{'-protected' if arm == PROTECT else ''}",
                finding,
                trial.cost(arm),
                "KL a token",
                trial.texts,
                grade.word,
                why,
                advice,
                values=tuple(trial.values(arm).tolist()),
            )
        )
    return found


def _rescue(subject: CheckedModel, texts: TextSet, scheme: str, progress: Progress | None) -> Rescue:
    return rescue(
        subject.model,
        texts.ids[:RESCUED],
        scheme,
        calibrate_on=texts.choosing,
        batch_size=subject.batch_size,
        seed=subject.seed,
        runs=RUNS,
        progress=progress,
    )


def _rescue_rows(found: Rescue, shown: str) -> list[Row]:
    """The fewest maps, and the fewest tokens, that give 90 % of a scheme's cost back; else those that give most."""
    rows = []
    for what in WHAT:
        if (best := found.best(what)) is None:
            continue
        one = best.count == 1
        left = f"{best.count} token{'' if one else 's'} of a text whole"
        if what == "maps":
            left = f"{best.count} of {found.of_maps} maps in 16 bits"
        rows.append(
            Row(
                f"rescue:{shown}-{what}",
                f"{shown}, {left}",
                mean_interval(best.values),
                "KL a token",
                found.texts,
                best.word,
                f"{'gives' if one else 'give'} back {best.recovered_in_words()}",
                f"{shown} with {left}" if best.word in ADVISED else "",
                values=tuple(best.values.tolist()),
            )
        )
    return rows


def _kept(found: Rescue) -> dict[str, Any]:
    """A rescue without what was tried on the way."""
    return {name: value for name, value in found.to_json().items() if name not in ("tried", "ranked")}


def _rescued(rows: list[Row]) -> str:
    """What protecting does, where rounding everything is not free."""
    if len(rows) < 2 or rows[0].word == "free":
        return ""
    return f" ({rows[1].word} with sinks and outliers kept)"


def _worst(subject: CheckedModel, texts: TextSet) -> str:
    """The linear maps whose inputs reach furthest beyond the median."""
    try:
        found = hazards(subject.model, texts.choosing).worst(WORST)
    except InputError:  # families whose maps have other names
        return ""
    sites = ", ".join(f"block {row.block} {row.site} (× {row.max_median:.0f})" for row in found.itertuples())
    return f"Largest ranges over their medians: {sites}."


SECTION = CheckSection("int8", "int8", "full", applies, 22.5, run_section, once=30.0)
