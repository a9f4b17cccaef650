"""Is int8 safe: with ranges per token, as on servers, and with ranges per tensor and static ones, as on NPUs.

The first set of texts also shows which linear maps cost most, and, for ranges that are not safe, the fewest maps in 16
bits and the fewest protected tokens that recover their cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sinkscope.checks.modules import map_arms, module_rows, ranked_modules
from sinkscope.checks.row import ADVISED, Answered, Row
from sinkscope.checks.section import CheckSection, Progress
from sinkscope.checks.subject import CheckedModel, TextSet
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.measurement.peaks import peaks, sites
from sinkscope.quantization import scheme_named
from sinkscope.quantization.as_read import weights_as_read
from sinkscope.sinks import NothingChosenError, Outliers, Tokens
from sinkscope.statistics import mean_interval
from sinkscope.trials import Arm, OnePass, Rescue, SchemeArms, Texts, Trial, protected_arm, rescue, run, split

RANGES = ("token", "tensor", "static")
KEPT_WEIGHTS = 16  # bits that leave weights as they are
STATIC = "static range (NPU, ONNX, TensorRT)"
WORST = 2  # inputs that the answer names
RUNS, RESCUED = 14, 12  # passes of a rescue, and its texts
UNSAFE = ("costs", "breaks")


def run_section(subject: CheckedModel, texts: TextSet, progress: Progress | None) -> Answered:
    """The cost of rounding to 8 bits with each kind of range, and how much protecting tokens recovers."""
    weights = weights_as_read(subject.model)
    activations_only = weights.rounded
    bits = KEPT_WEIGHTS if activations_only else 8
    schemes = {f"a8-{one}" if activations_only else f"w{bits}a8-{one}": f"w{bits}a8-{one}" for one in RANGES}
    first = texts is subject.sets[0]
    ranking = ranked_modules(subject, texts) if first else None
    trial, refused = _trial(subject, texts, schemes, ranking.verified if ranking else (), progress)
    rows: list[Row] = []
    findings = [f"{name}: {reason}" for name, reason in refused.items()]
    unsafe: dict[str, str] = {}  # the scheme to run by the name on the card
    for name, scheme in schemes.items():
        if name in refused:
            continue
        scheme_rows = _rows(trial, name)
        rows += scheme_rows
        if scheme_rows[0].word in UNSAFE:
            unsafe[name] = scheme
        if protected := _when_protected(scheme_rows):
            findings.append(f"{name} {protected}")
    facts: dict[str, Any] = {"activations_alone": activations_only}
    if ranking is not None:
        facts |= ranking.facts
        map_rows = module_rows(trial, ranking.verified)
        rows += map_rows
        if map_rows and map_rows[0].number is not None:
            path, kl = map_rows[0].key.removeprefix("alone:"), map_rows[0].number.value
            findings.append(f"most expensive map alone: {path} (KL {kl:.3f})")
    for name in _to_rescue(unsafe) if first else ():
        rescued = _rescue(subject, texts, unsafe[name], progress)
        rescue_rows = _rescue_rows(rescued, name)
        rows += rescue_rows
        findings += [f"{row.finding} {row.why}" for row in rescue_rows]
        data = {key: value for key, value in rescued.to_json().items() if key not in ("tried", "ranked")}
        facts.setdefault("rescue", {})[name] = data
    schemes_alone = [row for row in rows if row.key in schemes]
    words = [f"{row.finding} {row.word}" for row in schemes_alone]
    if len(words) > 1:
        words[1] = f"under a {STATIC} {words[1]}"
    sentences = [", ".join(words), f"Activations alone are rounded ({weights.says})" if activations_only else ""]
    details = "; ".join(findings)
    sentences += [f"{details[:1].upper()}{details[1:]}", _worst(subject, texts)]
    return Answered(" ".join(f"{sentence}." for sentence in sentences if sentence), tuple(rows), facts)


def _trial(
    subject: CheckedModel, texts: TextSet, schemes: Mapping[str, str], maps: Sequence[str], progress: Progress | None
) -> tuple[Trial, dict[str, str]]:
    """All arms beside one unchanged model: each scheme, with protected tokens and without, and each map alone.

    Returns also why a scheme cannot run on this model, by its name. Raises `InputError` if none can.
    """
    model = subject.model
    parts = split(model, texts.ids, "fits", calibrate_on=texts.calibration)
    all_built = {
        name: SchemeArms(model, scheme_named(scheme), parts.scored, parts.fitted_on, subject.seed)
        for name, scheme in schemes.items()
    }
    any_built = next(iter(all_built.values()))
    tokens, fitted = (_protected(subject, texts, any_built, some) for some in (parts.scored, parts.fitted_on))
    arms: list[Arm] = []
    refused: dict[str, str] = {}
    for name, built in all_built.items():
        alone = built.arm(name, None, None)
        try:
            with alone.open(model, parts.scored.part(slice(0, 1))):
                pass  # ranges are fitted and maps changed, either of which may be refused
        except InputError as error:
            refused[name] = str(error)
            continue
        arms.append(alone)
        if tokens is not None:
            arms.append(built.arm(protected_arm(name), tokens, fitted if built.scheme.fits else None))
    if not arms:
        raise InputError("; ".join(dict.fromkeys(refused.values())))
    trial = run(
        model,
        parts.scored,
        [*arms, *map_arms(subject, texts, maps)],
        reading=OnePass(),
        controls=subject.controls,
        calibrated_on=parts.record,
        batch_size=subject.batch_size,
        seed=subject.seed,
        about={"kind": "check-int8"},
        progress=progress,
    )
    return trial, refused


def _protected(subject: CheckedModel, texts: TextSet, built: SchemeArms, some: Texts) -> Tokens | None:
    """The card's sinks and the outliers of these texts, the same for all schemes; None if there are neither."""
    sinks = subject.sinks(texts)
    chosen = None if sinks is None else built.tokens(sinks, some)
    try:
        outliers = built.tokens(Outliers(), some)
    except NothingChosenError:
        return chosen
    return outliers if chosen is None else chosen | outliers


def _rows(trial: Trial, name: str) -> list[Row]:
    """The scheme, then the scheme with protected tokens."""
    rows = []
    kept = protected_arm(name)
    for arm in [arm for arm in (name, kept) if arm in trial.arms]:
        grade = trial.grade(arm)
        why = grade.why
        finding = name
        advice = f"{name} is safe" if grade.word in ADVISED and arm == name else ""
        if arm == kept:
            recovered = trial.recovered(arm, of=name)
            finding = f"{name}, {trial.record['arms'][arm]['tokens_per_text']:.1f} tokens kept"
            if np.isfinite(recovered.value):
                low, high = 100 * recovered.low, 100 * recovered.high
                why = f"gives back {100 * recovered.value:.0f} % ({low:.0f} to {high:.0f})"
            if trial.controls(arm) and trial.difference(arm).high >= 0:
                why = "; ".join(filter(None, (why, "no more than random tokens")))
            if grade.word in ADVISED and trial.word(name) not in ADVISED:
                advice = f"{name} with sinks and outliers in full precision"
        rows.append(
            Row(
                f"{name}{'-protected' if arm == kept else ''}",
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
    return rows


def _to_rescue(unsafe: Mapping[str, str]) -> list[str]:
    """Ranges per token, and either static ones or those per tensor, which a few large values widen in the same way."""
    return [name for name in unsafe if name.endswith("token") or name == list(unsafe)[-1]]


def _rescue(subject: CheckedModel, texts: TextSet, scheme: str, progress: Progress | None) -> Rescue:
    return rescue(
        subject.model,
        texts.ids[:RESCUED],
        scheme,
        calibrate_on=texts.calibration,
        batch_size=subject.batch_size,
        seed=subject.seed,
        runs=RUNS,
        progress=progress,
    )


def _rescue_rows(rescued: Rescue, name: str) -> list[Row]:
    """The fewest maps, and the fewest tokens, that recover 90 % of a scheme's cost; else those that recover most."""
    rows = []
    for unit, best in rescued.found.items():
        one = best.count == 1
        unrounded = f"{best.count} token{'' if one else 's'} of a text whole"
        if unit == "maps":
            unrounded = f"{best.count} of {rescued.of_maps} maps in 16 bits"
        rows.append(
            Row(
                f"rescue:{name}-{unit}",
                f"{name}, {unrounded}",
                mean_interval(best.values),
                "KL a token",
                rescued.texts,
                best.word,
                f"{'gives' if one else 'give'} back {best.recovered_in_words()}",
                f"{name} with {unrounded}" if best.word in ADVISED else "",
                values=tuple(best.values.tolist()),
            )
        )
    return rows


def _when_protected(rows: list[Row]) -> str:
    """The grade with protected tokens, unless the scheme is free without them."""
    if len(rows) < 2 or rows[0].word == "free":
        return ""
    return f"{rows[1].word} with sinks and outliers kept"


def _worst(subject: CheckedModel, texts: TextSet) -> str:
    """The inputs of linear maps with the largest ratio of maximum to median over tokens; empty if none can be read."""
    try:
        read = peaks(subject.model, texts.calibration, sites(subject.model))
    except (InputError, UnsupportedModelError):
        return ""
    kinds: dict[tuple[int, float], list[str]] = {}  # of the maps of a block that are given the same input
    for site in sites(subject.model):
        if (sizes := read.values.get(site.name)) is not None and bool(sizes.isfinite().all()):
            ratio = float(sizes.max() / sizes.median().clamp(min=1e-30))
            kinds.setdefault((site.block, ratio), []).extend(site.kinds)
    worst = sorted(kinds, key=lambda place: -place[1])[:WORST]
    named = [f"block {place[0]} into {', '.join(dict.fromkeys(kinds[place]))} (× {place[1]:.0f})" for place in worst]
    return f"Largest ranges over their medians: {', '.join(named)}" if named else ""


SECTION = CheckSection(
    "int8",
    "int8",
    "full",
    CheckedModel.decoder_obstacle,
    (
        *(f"{what}-{one}{kept}" for what in ("a8", "w8a8") for one in RANGES for kept in ("", "-protected")),
        "alone:*",
        "rescue:*",
    ),
    10.0,
    run_section,
    extra_passes=13.0,
)
