"""Trials of changed models: does the sink matter, and what any named intervention costs against its controls."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
import xarray as xr
from jaxtyping import Bool, Float
from torch import Tensor, nn

from sinkscope.errors import InputError, unknown
from sinkscope.hooks import Stream, row_digests, row_length, unwrapped
from sinkscope.interventions import (
    Constants,
    FoldSink,
    Form,
    HideSink,
    Intervention,
    MeanSink,
    MuteSink,
    SwapSink,
    Targets,
    TrimMass,
    constants,
)
from sinkscope.interventions.inside import mean_masses
from sinkscope.interventions.sink import ENOUGH
from sinkscope.interventions.targets import AFTER, NEVER, acted_on
from sinkscope.measurement import AttentionReceived, find_tokens, measure, metrics
from sinkscope.sinks import EPSILON, Choice, First, Measured, NothingChosenError, Positions, Tokens, counted, parts_of
from sinkscope.statistics import Interval
from sinkscope.trials.arm import REFERENCE, Arm, OnePass, Texts
from sinkscope.trials.run import Progress, run
from sinkscope.trials.texts import Split, split
from sinkscope.trials.trial import SENTENCES, Trial
from sinkscope.trials.words import TOLERANCE

QUESTION = ("hide-sink", "mute-sink", "mean-sink", "fold-sink", "swap-sink", "trim-sink")
"""The arms of "does the sink matter"."""
FOLDS: dict[str, Form] = {"fold-logit": "logit", "fold-sink": "logit+value", "fold-key": "key+value"}
"""Arms that fold the sink into constants, by their form; `fold-sink` is one of `QUESTION`."""
ARMS = tuple(dict.fromkeys((*QUESTION, *FOLDS)))
OTHERS = "trim-others"
CONSTANT = ("mean-sink", "swap-sink", *FOLDS)  # with numbers of other texts
AFTER_CURVE = (1, 2, 4, 8, 16, 32)  # the curve over `after`
LOOKED_AT = 16  # texts in which the sink is looked for afterwards
BANDS = 6  # of neighboring layers
DRAWS = 20  # of an intervention's own control, until one differs from those before
By = Literal["after", "layer", "band"]


@dataclass(frozen=True, eq=False)
class SinkArms:
    """How the arms on one set of sink tokens are made for any of the texts.

    `layers`: where; `constants`: those of other texts, None where no arm needs them; `length`: tokens of a text, for
    inputs that are no token ids; `seed`: that of the trial, from which controls count their draws.
    """

    targets: Targets
    after: int
    layers: tuple[int, ...] | None = None
    constants: Constants | None = None
    length: int | None = None
    seed: int = 0
    suffix: str = ""
    series: bool = False

    def arm(self, what: str) -> Arm:
        """The arm of this name. Raises `InputError` for an unknown one."""
        if what not in (*ARMS, OTHERS):
            raise unknown("arm", what, (*ARMS, OTHERS))

        def control(draw: int, texts: Texts) -> Arm | None:
            others = other_targets(self.targets, texts, draw - self.seed, self.seed, self.length)
            return None if others is None else replace(self, targets=others).arm(what)

        facts = {"on": self.targets.describe(), "after": self.after, "layers": self.layers and list(self.layers)}
        if what in CONSTANT and self.constants is not None:
            facts["constants"] = self.constants.describe()
        return Arm(
            what + self.suffix,
            lambda model, texts: self.change(what, texts).applied(model),
            control=None if what.startswith("trim") else control,
            touched=self.before,
            series=what if self.series else "",
            facts=facts,
        )

    def change(self, what: str, texts: Texts) -> Intervention:
        """The intervention for some of the texts."""
        common: dict[str, Any] = {"on": self.targets.part(texts.rows), "after": self.after, "layers": self.layers}
        if what in CONSTANT:
            assert self.constants is not None
            if what == "swap-sink":
                donors = tuple(number % len(self.constants.keys) for number in _digests(texts))
                return SwapSink(**common, constants=self.constants, donors=donors)
            if what in FOLDS:
                return FoldSink(**common, constants=self.constants, form=FOLDS[what])
            return MeanSink(**common, constants=self.constants)
        if what in ("trim-sink", OTHERS):
            return TrimMass(**common, off="sink" if what == "trim-sink" else "others")
        return (HideSink if what == "hide-sink" else MuteSink)(**common)

    def before(self, texts: Texts) -> Bool[Tensor, "text token"]:
        """Tokens whose predictions no change reaches: those before the last target's first query."""
        real = _real(texts, self.length)
        position = real.long().cumsum(-1) - 1
        first = self.targets.part(texts.rows).first
        last_start = torch.as_tensor(np.where(first < NEVER, first, 0).max(-1))
        return (position < last_start[:, None]) & real


def other_targets(targets: Targets, texts: Texts, index: int, seed: int, length: int | None = None) -> Targets | None:
    """For each target another key before its first query, for the same queries: a control.

    Each text shuffles these keys by `seed` and a hash of its tokens, and takes the next one for each control, so that
    controls differ and depend neither on batches nor on other arms. None if a text has no such key left, or fewer than
    two for some target: then nothing is compared.

    Args:
        targets: The keys of the arm, with the first query that each is changed for.
        texts: The texts, or a batch of them.
        index: Number of the control, from 0.
        seed: Seed of the shuffles.
        length: Tokens per text; needed only for inputs that are no token ids.
    """
    lengths = _real(texts, length).sum(-1).tolist()
    first = np.broadcast_to(targets.first, (len(lengths), targets.first.shape[1]))
    first_queries = np.full((len(lengths), max(int(first[first < NEVER].max()), first.shape[1])), NEVER)
    for row, digest in enumerate(_digests(texts)):
        sinks = np.flatnonzero(first[row] < NEVER)
        taken = set(sinks.tolist())
        for sink in sinks.tolist():
            keys = [k for k in range(min(int(first[row, sink]), lengths[row])) if k not in sinks]
            if len(keys) < max(2, index + 1):
                return None
            order = np.random.default_rng([seed, digest, sink]).permutation(keys).tolist()
            free = [key for key in [*order[index:], *order[:index]] if key not in taken]
            if not free:
                return None
            taken.add(free[0])
            first_queries[row, free[0]] = first[row, sink]
    return Targets(first_queries)


def matters(
    model: nn.Module,
    inputs: Any,
    what: Sequence[str] = QUESTION,
    *,
    on: Any = None,
    after: int = AFTER,
    layers: Sequence[int] | None = None,
    by: By | None = None,
    calibrate_on: Any = None,
    controls: int = 5,
    epsilon: float = EPSILON,
    tolerance: float = TOLERANCE,
    seed: int = 0,
    batch_size: int = 8,
    look_after: Sequence[str] | None = None,
    out: Any = None,
    about: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Trial:
    """Does the sink matter? It is hidden, muted, made a constant, swapped and trimmed, for the queries after it.

    The sinks are chosen, and constants measured, on texts that are not scored. Scored are predictions at tokens that
    the change reaches. The record's `sink` has what else is known: the mean attention that hiding takes (`mass`),
    the mass that trimming moves (`moved`), and for each arm where the sink is afterwards (`afterwards`: the position
    with the largest sink rate among those that enough queries see, its rate, and the rate of the old one; weights as
    the layer has them before trimming and folding).

    Args:
        model: Any transformers model with logits.
        inputs: Texts, as `measure` takes them; a fifth of them, at least eight, is for the choice and the constants.
        what: Names of `QUESTION`, and `fold-logit` and `fold-key`: the other forms of `interventions.FoldSink`.
        on: Which tokens: positions, a choice or its words, `Tokens`. Default: the sinks, as measured.
        after: Queries at least this many tokens after a sink are changed.
        layers: Running numbers of layers, None for all.
        by: "after": a curve over 1, 2, 4, 8, 16, 32; "layer": each layer by itself; "band": sixths of the layers.
        calibrate_on: Other texts for the choice and the constants; all of `inputs` are scored then.
        controls: Draws of other keys; fewer where fewer keys come before the first query.
        epsilon: The threshold of the sink rate.
        look_after: The arms for which the record has where the sink is afterwards, None for all.
        tolerance, seed, batch_size, out, about, progress: As in `run`.

    Raises `InputError` for unknown arms and choices, where no token is chosen, and for texts that end before any
    changed query.
    """
    model = unwrapped(model)
    if (wrong := next((name for name in what or ("",) if name not in ARMS), None)) is not None:
        raise unknown("arm", str(wrong), ARMS)
    parts = split(model, inputs, uses(what, on), calibrate_on=calibrate_on)
    tokens, notes = _resolved(model, parts, on, epsilon, batch_size)
    steps: tuple[int, ...] = AFTER_CURVE if by == "after" else (after,)
    length = row_length(model, parts.scored.inputs)
    wanted = [Targets.of(tokens, step) for step in steps]
    steps = tuple(s for s, t in zip(steps, wanted, strict=True) if _last(t) < length - 1)
    if not steps:
        raise InputError(
            f"the texts have {length} tokens, and none comes {after} after position {max(wanted[0].positions)}: give "
            "longer texts, or a smaller after"
        )
    chosen = list(dict.fromkeys(what))
    sets: list[SinkArms] = []
    for step in steps:
        targets = Targets.of(tokens, step)
        of_others = None
        if any(name in CONSTANT for name in chosen):
            of_others = constants(model, parts.fitted_on.inputs, targets, step, batch_size=batch_size)
            if {"mean-sink", "swap-sink"} & set(chosen) and not any(of_others.differ(p) for p in targets.positions):
                chosen = [name for name in chosen if name not in ("mean-sink", "swap-sink")]
                notes.append(
                    "Key and value of the sink are the same in all texts (a constant first token), so mean-sink and "
                    "swap-sink would change nothing: not run."
                )
        groups: list[tuple[tuple[int, ...] | None, str]] = [(None if layers is None else tuple(layers), "")]
        if by in ("layer", "band"):
            numbers = list(range(len(Stream.of(model).attention(model))) if layers is None else layers)
            bands = np.array_split(numbers, len(numbers) if by == "layer" else min(BANDS, len(numbers)))
            groups = [(tuple(band.tolist()), _band(band.tolist())) for band in bands]
        elif by == "after":
            groups = [(groups[0][0], f"@{step}")]
        sets += [
            SinkArms(targets, step, group, of_others, length, seed, suffix, by is not None) for group, suffix in groups
        ]
    if not chosen:
        raise InputError(notes[-1] + " Name other arms.")
    names = [name for each in chosen for name in ((each, OTHERS) if each == "trim-sink" else (each,))]
    arms = [each.arm(name) for name in names for each in sets]
    main = sets[0]
    drawn = (other_targets(main.targets, parts.scored, index, seed, length) for index in range(controls))
    others = [each for each in drawn if each is not None]
    offered = len(others)
    if by is None and 0 < offered < controls:
        notes.append(f"Only {offered} controls: no more other keys come before the first query.")
    elif by is None and controls and not offered:
        notes.append("Fewer than two other keys come before the first query, so nothing is compared with others.")
    sink: dict[str, Any] = {"positions": list(main.targets.positions), "after": main.after, "by": by or ""}
    sink |= {"epsilon": epsilon, "chosen": tokens.describe() if isinstance(tokens, Tokens) else {}}
    if by is None and not set(names) <= set(FOLDS):  # a fold leaves the measured weights, and takes no mass
        sink |= masses(model, parts.scored, main, others, batch_size)
        looked_after = names if look_after is None else [name for name in names if name in look_after]
        changes = {name: partial(main.change, name) for name in looked_after}
        sink["afterwards"] = afterwards(model, parts.scored, changes, main.targets.positions, epsilon, batch_size)
    record = {"kind": "changes", "sink": sink, "notes": notes, **dict(about or {})}
    return run(
        model,
        parts.scored,
        arms,
        reading=OnePass(),
        controls=controls,
        calibrated_on=parts.record,
        tolerance=tolerance,
        seed=seed,
        batch_size=batch_size,
        out=out,
        about=record,
        progress=progress,
    )


def masses(
    model: nn.Module, texts: Texts, arms: SinkArms, others: Sequence[Targets], batch_size: int
) -> dict[str, float | None]:
    """Mean attention of the changed queries to the sink (`mass`), to the keys of controls (`mass_of_controls`), and the
    mass that trimming moves (`moved`).

    Args:
        model: The unchanged model.
        texts: The scored texts.
        arms: Targets and layers of the arms.
        others: Targets of the controls; without any, `mass_of_controls` is None.
        batch_size: Texts per pass.
    """
    totals = np.zeros((len(others) + 2, 2))
    for batch in texts.batches(batch_size):
        targets = [each.part(batch.rows) for each in (arms.targets, *others)]
        totals += mean_masses(model, batch.inputs, targets, arms.layers)
    means = totals[:, 0] / np.maximum(totals[:, 1], 1)
    control = float(means[1:-1].mean()) if others else None
    return {"mass": float(means[0]), "mass_of_controls": control, "moved": float(means[-1])}


def afterwards(
    model: nn.Module,
    texts: Texts,
    changes: Mapping[str, Callable[[Texts], Intervention]],
    positions: Sequence[int],
    epsilon: float,
    batch_size: int,
) -> dict[str, dict[str, Any]]:
    """Where the sink is in the unchanged model ("full") and under each change, in up to 16 of the texts.

    For each of them `position`, the one with the largest sink rate among those that enough queries see; `rate`, that
    rate in percent; `rate_of_old`, the largest rate of the old positions. None if too few queries see a position.

    Args:
        model: The model.
        texts: The scored texts.
        changes: By arm, a function from a batch of texts to its intervention.
        positions: The positions of the sink in the unchanged model.
        epsilon: The attention, 0 to 1, above which a head has a sink.
        batch_size: Texts per pass.
    """
    places: dict[str, dict[str, Any]] = {}
    some = texts.part(slice(0, LOOKED_AT))
    for name, change in {REFERENCE: None, **changes}.items():
        rates = []
        for batch in some.batches(batch_size):
            with nullcontext() if change is None else change(batch).applied(model):
                rates.append(sink_rates(model, batch.inputs, epsilon, batch_size))
        width = min(each.shape[1] for each in rates)
        rate = metrics.nanmean(np.concatenate([each[:, :width] for each in rates]), 0)
        old = [float(rate[p]) for p in positions if p < width and np.isfinite(rate[p])]
        seen = np.isfinite(rate).any()
        best = int(np.nanargmax(rate)) if seen else None
        largest = None if best is None else float(rate[best])
        places[name] = {"position": best, "rate": largest, "rate_of_old": max(old, default=None)}
    return places


def sink_rates(model: nn.Module, inputs: Any, epsilon: float, batch_size: int) -> Float[np.ndarray, "sample position"]:
    """Sink_k^ε of every position that enough queries see, %, NaN for the others."""
    data = measure(model, inputs, [AttentionReceived()], batch_size=batch_size).data
    return rates_of(data, Stream.of(model).stack, epsilon)


def rates_of(data: xr.Dataset, stack: str, epsilon: float) -> Float[np.ndarray, "sample position"]:
    """As `sink_rates`, from the data of a measurement."""
    layers = data["stack"].values == stack
    received = data["attention_received"].transpose("sample", "layer", "head", "position").values[:, layers]
    rates = metrics.sample_rates(received, epsilon)
    if "visible_queries" in data:
        # In the layer where most queries see a position: a window leaves fewer in others.
        visible = data["visible_queries"].transpose("sample", "layer", "position").values[:, layers].max(1)
    else:
        real = ~np.isnan(rates)
        # Without counts, those of a causal text: a position is seen by itself and all later real ones.
        visible = real[:, ::-1].cumsum(-1)[:, ::-1] * real
    return np.where(counted(visible.astype(float)), rates, np.nan)


def table(trial: Trial) -> pd.DataFrame:
    """An arm per row: nats and KL with intervals, its controls' nats, by how much it costs more, the mass that is taken
    and the nats for each unit of it, where the sink is afterwards, and the word. KL replaces nats where the model
    predicts no next token."""
    sink, rows, score = trial.record["sink"], [], score_of(trial)
    for arm in trial.named("arm"):
        cost, kl = trial.cost(arm, score), trial.cost(arm)
        row: dict[str, Any] = {"arm": arm}
        if score == "nats":
            row |= {"nats": cost.value, "nats_low": cost.low, "nats_high": cost.high}
        row |= {"kl": kl.value, "kl_low": kl.low, "kl_high": kl.high, "word": trial.grade(arm).word}
        if trial.controls(arm):
            values = trial.values(f"controls of {arm}", score) - trial.values(REFERENCE, score)
            more = trial.difference(arm, score=score)
            row |= {
                "controls": float(np.mean(values)),
                "more": more.value,
                "more_low": more.low,
                "more_high": more.high,
            }
        if (mass := _mass(sink, arm)) is not None:
            row |= {"mass": mass, "nats_per_mass": cost.value / mass if mass > 0 else float("nan")}
            row["word"] = (
                "cannot tell: too little mass to move" if arm.startswith("trim") and mass < ENOUGH else row["word"]
            )
        if (place := sink.get("afterwards", {}).get(arm)) is not None:
            row |= {"sink_at": place["position"], "sink_rate": place["rate"], "rate_of_old": place["rate_of_old"]}
        rows.append(row)
    return pd.DataFrame(rows)


def _mass(sink: Mapping[str, Any], arm: str) -> float | None:
    if arm.startswith("trim"):
        return sink.get("moved")
    return sink.get("mass") if arm == "hide-sink" else None


WORDS = {
    "hide-sink": "hiding it",
    "mute-sink": "muting its value",
    "mean-sink": "its mean value in its place",
    "fold-logit": "a constant logit in its place",
    "fold-sink": "a constant logit and value in its place",
    "fold-key": "a constant key and value in its place",
    "swap-sink": "another text's key and value in its place",
}


def sentences(trial: Trial) -> list[str]:
    """What a trial of changes says: what each arm costs, against its controls, and where the sink is afterwards."""
    sink = trial.record.get("sink", {})
    if sink.get("by"):
        return trial.sentences()
    if "after" not in sink:
        name = trial.named("arm")[0]
        lines = [f"'{name}' {trial.cost_in_words(name)}.", *_against_controls(trial, name)]
        old, new = sink["afterwards"][REFERENCE], sink["afterwards"][name]
        rates = f"{_rate(old['rate_of_old'])} → {_rate(new['rate_of_old'])}"
        return [*lines, f"Sink rate at position {sink['positions'][0]}: {rates}."]
    arms, score = trial.named("arm"), score_of(trial)
    unit = "nats" if score == "nats" else "nats of KL"
    broken = "hide-sink" in arms and trial.grade("hide-sink").word == "breaks"
    lines, parts = [], []
    for arm in (arm for arm in WORDS if arm in arms):
        breaks = " breaks the model," if trial.grade(arm).word == "breaks" else ""
        parts.append(f"{WORDS[arm]}{breaks} {_signed(trial.cost(arm, score))}")
    moved = sink.get("moved", float("nan"))
    if "trim-sink" in arms and moved >= ENOUGH:
        off, others = (_signed(trial.cost(arm, score)) for arm in ("trim-sink", OTHERS))
        parts.append(f"the same mass ({moved:.2f}) off it {off}, off other tokens {others}")
    elif "trim-sink" in arms:
        parts.append(f"too little mass to move ({moved:.3f})")
    where = ", ".join(map(str, sink["positions"][:8]))
    head = f"The sink at position {where}, for queries at least {sink['after']} tokens after it, {unit} a token"
    lines.append(f"{head}: {'; '.join(parts)}.")
    if broken:
        lines.append("Hiding it breaks the model, so only equal mass, mean and fold are compared.")
    for arm in arms:
        if not (broken and arm in ("hide-sink", "mute-sink", "swap-sink")):
            lines += _against_controls(trial, arm)
    if "trim-sink" in arms and moved >= ENOUGH:
        more = trial.difference("trim-sink", OTHERS, score)
        lines.append(f"Mass on the sink costs {_compared(more)} the same mass on other tokens ({_signed(more)}).")
    if "hide-sink" in arms:
        old, new = sink["afterwards"][REFERENCE], sink["afterwards"]["hide-sink"]
        lines.append(
            f"The largest sink rate is {_rate(old['rate'])} at position {old['position']}, and when that is hidden "
            f"{_rate(new['rate'])} at position {new['position']}."
        )
    return lines


def score_of(trial: Trial) -> Literal["nats", "kl"]:
    """Nats, or KL for a model that predicts no next token."""
    return "nats" if "nats" in trial.data and bool(trial.data["nats"].notnull().any()) else "kl"


def _against_controls(trial: Trial, arm: str) -> list[str]:
    if not trial.controls(arm):
        return []
    more = trial.difference(arm, score=score_of(trial))
    count = len(trial.controls(arm))
    return [f"{arm} costs {_compared(more)} its {count} control{'s' if count > 1 else ''} ({_signed(more)})."]


def _compared(more: Interval) -> str:
    return "more than" if more.low > 0 else "less than" if more.high < 0 else "what cannot be told from"


def _rate(value: float | None) -> str:
    return "no rate" if value is None else f"{value:.1f} %"


SENTENCES["changes"] = sentences


def intervention_arm(
    name: str, intervention: Intervention, model: nn.Module, inputs: Mapping[str, Any], seed: int = 0
) -> Arm:
    """Any intervention as an arm; its controls are different draws of `intervention.control`.

    Args:
        name: The arm's name.
        intervention: The change.
        model: The model, for drawing controls.
        inputs: The model inputs of all texts, for drawing controls.
        seed: The trial's seed: controls are numbered from it, and it seeds their draws.
    """
    drawn: list[Intervention] = []
    generator = torch.Generator().manual_seed(seed)

    def as_arm(change: Intervention, control: Callable[[int, Texts], Arm | None] | None) -> Arm:
        facts = json.loads(json.dumps(change.describe(), default=str))
        return Arm(name, lambda model, texts: change.applied(model), control=control, facts=facts)

    def control(draw: int, texts: Texts) -> Arm | None:
        tries = 0
        # One generator draws them in sequence, so a draw needs all before it; repeated ones are discarded.
        while len(drawn) <= draw - seed and tries < DRAWS:
            tries += 1
            other = intervention.control(generator, model, inputs)
            if other not in drawn:
                drawn.append(other)
        return as_arm(drawn[draw - seed], None) if len(drawn) > draw - seed else None

    return as_arm(intervention, control)


def effect(
    model: nn.Module,
    inputs: Any,
    intervention: Intervention,
    *,
    controls: int = 5,
    seed: int = 0,
    batch_size: int = 8,
    progress: Progress | None = None,
) -> Trial:
    """The old name of `changed`, for one release.

    Args:
        model, inputs, intervention, controls, seed, batch_size, progress: As in `changed`.
    """
    warnings.warn("effect() is now trials.changes.changed()", DeprecationWarning, stacklevel=2)
    return changed(model, inputs, intervention, controls=controls, seed=seed, batch_size=batch_size, progress=progress)


def changed(
    model: nn.Module,
    inputs: Any,
    intervention: Intervention,
    *,
    name: str = "",
    position: int = 0,
    epsilon: float = EPSILON,
    drawn_in: Mapping[str, Any] | None = None,
    controls: int = 5,
    seed: int = 0,
    batch_size: int = 8,
    about: Mapping[str, Any] | None = None,
    **options: Any,
) -> Trial:
    """One intervention against its own controls on the same texts.

    Args:
        model: Any transformers model with logits.
        inputs: The texts that are scored.
        intervention: What is changed; its `control` draws what it is compared with.
        name: The arm's name; by default the intervention's.
        position: Where the sink rate is read, in the unchanged model and under the change.
        epsilon: The threshold of the sink rate.
        drawn_in: Inputs in which controls look for what they need; by default the texts.
        controls: Draws of the control, each another one; fewer where fewer exist.
        seed, batch_size, about, options: As in `run`.

    Raises `InputError` for positions that a text does not have, and as `run` does.
    """
    model = unwrapped(model)
    texts = inputs if isinstance(inputs, Texts) else Texts.of(model, inputs)
    length = row_length(model, texts.inputs)
    for named in (position, *intervention.positions_named):
        if not 0 <= named < length:
            raise InputError(f"position {named} is in no row: rows have positions 0 to {length - 1}")
    name = name or type(intervention).__name__
    arm = intervention_arm(name, intervention, model, drawn_in or texts.inputs, seed)
    places = afterwards(model, texts, {name: lambda _: intervention}, (position,), epsilon, batch_size)
    record = {"kind": "changes", "sink": {"positions": [position], "epsilon": epsilon, "afterwards": places}}
    return run(
        model,
        texts,
        [arm],
        reading=OnePass(),
        controls=controls,
        seed=seed,
        batch_size=batch_size,
        about=record | dict(about or {}),
        **options,
    )


def uses(what: Sequence[str], on: Any = None) -> Literal["nothing", "chooses"]:
    """Whether these arms, on these tokens, need texts that are not scored: for a choice, or for constants."""
    choice = acted_on(on)
    looks = isinstance(choice, Choice) and bool(choice.needs)
    return "chooses" if looks or set(what) & set(CONSTANT) else "nothing"


def _resolved(model: nn.Module, parts: Split, on: Any, epsilon: float, batch_size: int) -> tuple[Any, list[str]]:
    """Positions or `Tokens` as they are, and a choice resolved, with notes on where.

    Measured positions are those of the texts that are not scored; other tokens belong to their text, so they are looked
    for in the scored texts themselves.
    """
    choice = acted_on(on, epsilon)
    if not isinstance(choice, Choice):
        return choice, []
    tokens: Tokens | None = None
    nothing: NothingChosenError | None = None
    notes = []
    for one in parts_of(choice):
        of_any_text = isinstance(one, First | Positions) or (isinstance(one, Measured) and one.by == "position")
        texts = parts.fitted_on if of_any_text else parts.scored
        try:
            found = find_tokens(model, texts.inputs, one, batch_size=batch_size)
        except NothingChosenError as error:
            nothing = nothing or error
            continue
        if not of_any_text:
            notes.append(f"The tokens of '{one}' are found in the scored texts themselves.")
        tokens = found if tokens is None else tokens | found
    if tokens is None:
        assert nothing is not None
        raise nothing
    return tokens, notes


def _band(layers: Sequence[int]) -> str:
    """@layer 3, or @layers 0-4."""
    return f"@layer {layers[0]}" if len(layers) == 1 else f"@layers {layers[0]}-{layers[-1]}"


def _last(targets: Targets) -> int:
    return int(targets.first[targets.first < NEVER].max())


def _real(texts: Texts, length: int | None) -> Bool[Tensor, "text token"]:
    """False for padding; texts that are no token ids have `length` tokens each."""
    if texts.real is not None:
        return texts.real
    if texts.ids is not None:
        return torch.ones_like(texts.ids, dtype=torch.bool)
    return torch.ones(texts.count, length or 0, dtype=torch.bool)


def _digests(texts: Texts) -> list[int]:
    """A number for each text from what it says, its padding left out: whatever batch it is in."""
    ids = texts.ids
    if ids is not None:
        rows = [row[keep].cpu() for row, keep in zip(ids, _real(texts, None), strict=True)]
    else:
        main = next(v for v in texts.inputs.values() if isinstance(v, Tensor) and len(v) == texts.count)
        rows = [row.detach().cpu().float() for row in main]
    return row_digests(rows)


def _signed(interval: Interval) -> str:
    """+.011 (.006 to .016)."""
    if interval.unbounded:
        return f"{interval.value:+.3f}"
    return f"{interval.value:+.3f} ({interval.low:+.3f} to {interval.high:+.3f})"
