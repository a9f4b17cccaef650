"""What quantizing a model costs, and what protecting tokens recovers: the arms of such a trial."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor, nn
from transformers import Cache, DynamicCache

from sinkscope.caches.sizes import held_bytes
from sinkscope.errors import InputError
from sinkscope.hooks import device_of, evaluating, part, unwrapped, with_cache
from sinkscope.interventions import All, Intervention
from sinkscope.measurement import find_tokens, rows_of
from sinkscope.measurement.peaks import check_whole
from sinkscope.model.columns import columns_of
from sinkscope.quantization import (
    Prefix,
    QuantizationScheme,
    QuantizeCache,
    SinkQuantizedCache,
    full_layers,
    matched_tokens,
    own_tokens,
    rounded_layers,
    scheme_named,
)
from sinkscope.quantization.agreement import warn_of_choice, warn_of_inputs, warn_of_prefix
from sinkscope.quantization.as_read import rounds_weights, weights_as_read
from sinkscope.quantization.memory import columns_kept, weight_bytes
from sinkscope.quantization.protected import Protect, among, described
from sinkscope.registry import renamed_argument
from sinkscope.sinks import Choice, First, Measured, NothingChosenError, Outliers, Tokens, parse, parts_of
from sinkscope.trials.arm import REFERENCE, Arm, OnePass, Texts, ThroughCache
from sinkscope.trials.run import Progress, run
from sinkscope.trials.texts import Uses, split
from sinkscope.trials.trial import SENTENCES, Trial
from sinkscope.trials.words import TOLERANCE, nats, percent

KIND = "schemes"
Protected = Protect | Prefix
Find = Callable[[Mapping[str, Any]], Prefix]
"""Finds a prefix in the inputs of the texts that are not scored."""
Known = (Choice, Tokens, Prefix)


@renamed_argument("spared", "protect")
def scheme_trial(
    model: nn.Module,
    inputs: Any,
    scheme: str | QuantizationScheme | Intervention,
    protect: str | Protected | Mapping[str, Protected | Find] | None = None,
    controls: int = 5,
    *,
    calibrate_on: Any = None,
    calibrated_source: str = "",
    in_sample: bool = False,
    context: int | None = None,
    tolerance: float = TOLERANCE,
    batch_size: int = 8,
    seed: int = 0,
    out: str | Path | None = None,
    about: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Trial:
    """What `scheme` costs on these texts, and how much of it protecting tokens recovers.

    Arms, on the same texts: the unchanged model; everything rounded (the baseline, named as the scheme); each choice of
    tokens with `controls` random choices that match it text by text; and the first tokens of its budget. A `Prefix` is
    compared with the unchanged model after the same prefix ("full after …"), whose own cost is that of the changed
    text, and with the same prefix rounded as any text ("…, rounded"), which shows what full-precision keys and values
    of the prefix are worth. For caches, a prefix must be what every text begins with, and protects those tokens.

    Nothing is scored on what it was calibrated on: a scheme that fits weights or ranges takes half of the texts, a
    choice of positions (`Measured`) a fifth, at least eight. `Outliers` and `Measured(by="row")` are found in the
    scored texts themselves, in full precision, which the verdict says. Schemes of linear maps are scored in one
    pass; those of caches through the cache, `context` tokens at once and then one at a time.

    Args:
        model: Any transformers model with logits.
        inputs: Texts, as `measure` takes them: those to score and those to calibrate on (`trials.needed`).
        scheme: A name of `SCHEMES`, a scheme, or an intervention with a field `protect`.
        protect: A choice, its words, a prefix, or several by name; {} for the cost alone. A function among them is
            given the inputs of the texts to calibrate on, and finds a prefix there. Default: for schemes that round
            activations sinks, outliers and both; for caches sinks; nothing where weights alone are rounded.
        controls: Number of random controls per choice.
        calibrate_on: Other texts to calibrate on; then all of `inputs` are scored.
        calibrated_source: Their name in the record.
        in_sample: Calibrate and score on all texts; the verdict says so.
        context: Tokens of each text that a cache is filled with at once. Default: half of a text.
        tolerance, batch_size, seed, out, about, progress: As in `run`.

    Warns where ranges were calibrated on other tokens than are served, and where nothing was rounded at all. Raises
    `InputError` as `measure` does, for a choice without tokens or controls, and for padding where a cache is read
    through.
    """
    model = unwrapped(model)
    chosen = scheme_named(scheme) if isinstance(scheme, str) else QuantizationScheme.of(scheme)
    wanted = _choices(chosen, protect)
    uses = takes(chosen, wanted.values())
    parts = split(model, inputs, uses, calibrate_on=calibrate_on, in_sample=in_sample, source=calibrated_source)
    scored, calibration = parts.scored, parts.fitted_on
    check_whole(scored.inputs)
    choices = {name: one if isinstance(one, Known) else one(calibration.inputs) for name, one in wanted.items()}
    reading = ThroughCache.of(scored, context) if chosen.caches else OnePass()
    length = reading.context if isinstance(reading, ThroughCache) else None
    built = SchemeArms(model, chosen, scored, calibration, seed, length)
    arms = built.arms(choices, forgiving=protect is None)
    baseline = built.made(None, None)
    if not isinstance(scheme, str | QuantizationScheme):
        _warn(arms, built, baseline)
    if chosen.fits and calibrate_on is not None:
        warn_of_inputs(model, calibration.inputs, scored.inputs)
    record: dict[str, Any] = {"kind": KIND, "scheme": chosen.name, "scheme_says": chosen.says, "fits": chosen.fits}
    record |= {"quantizer": baseline.describe()} | weight_bytes(model, baseline)
    record |= columns_kept(model, baseline, scored.inputs)
    if chosen.caches:
        record |= cache_share(model, scored, baseline) | {"stored": chosen.store is not None}
    trial = run(
        model,
        scored,
        arms,
        reading=reading,
        controls=controls,
        calibrated_on=parts.record,
        tolerance=tolerance,
        seed=seed,
        batch_size=batch_size,
        out=out,
        about={**record, "notes": [*_notes(model, baseline, record), *built.notes], **dict(about or {})},
        progress=progress,
    )
    if not bool((np.nan_to_num(trial.values(chosen.name)) != 0).any()):
        warnings.warn(
            f"under '{chosen.name}' every prediction is what the unchanged model's is: nothing was rounded. A cache "
            "closes groups of tokens: give texts long enough to close one",
            UserWarning,
            stacklevel=3,
        )
    return trial if chosen.store is not None or not chosen.caches else _without_bytes(trial)


def cache_share(model: nn.Module, texts: Texts, scheme: Intervention) -> dict[str, Any]:
    """How much of a model's cache a cache scheme rounds: the layers of full attention.

    `layers_rounded` of `layers`, and `bytes_rounded`, their share of all bytes that a cache of one of these texts
    holds: sliding windows, recurrent states and cross-attention are left whole, and ends if the scheme says so.
    """
    kept = rounded_layers(model, scheme.scheme) if isinstance(scheme, QuantizeCache) else full_layers(model)
    first = part(texts.inputs, slice(0, 1), texts.count, device_of(model))
    with evaluating(model), torch.no_grad():
        cached = DynamicCache(config=model.config)
        model(**first, use_cache=True, **with_cache(model, cached))
    sizes = [held_bytes(layer) for layer in cached.layers]
    rounded = sum(sizes[index] for index in kept)
    return {"layers_rounded": len(kept), "layers": len(sizes), "bytes_rounded": rounded / max(1, sum(sizes))}


@dataclass
class SchemeArms:
    """Builds the arms of one trial, on texts that are split already."""

    model: nn.Module
    scheme: QuantizationScheme
    scored: Texts
    calibration: Texts
    seed: int
    context: int | None = None  # tokens that are cached at once

    def __post_init__(self) -> None:
        self.notes: list[str] = []
        self._columns = columns_of(self.model, self.scored.inputs)
        self._make = self.scheme.on(self.model, self.calibration.inputs)
        self.by_arm: dict[str, tuple[Callable[[], Intervention], Protect | None, Prefix | None]] = {}
        # Choices share parts, "outliers" and "measured+outliers", and each reads all texts.
        self._found = cache(lambda one, texts: find_tokens(self.model, texts.inputs, one))

    def arms(self, choices: Mapping[str, Protected], *, forgiving: bool) -> list[Arm]:
        """The baseline, each choice and the first tokens of its budget. `forgiving`: leave out what chooses nothing."""
        name = self.scheme.name
        if wrong := {REFERENCE, name} & choices.keys():
            raise InputError(f"a choice is named '{wrong.pop()}', which every trial already has: choose another name")
        arms = [self.arm(name, None, None, baseline=True)]
        for word, choice in choices.items():
            if isinstance(choice, Prefix) and not self.scheme.caches:
                arms += self._after(word, choice)
                continue
            wanted = self._in_a_cache(word, choice) if isinstance(choice, Prefix) else choice
            try:
                tokens = self.tokens(wanted, self.scored)
            except NothingChosenError as error:
                if not forgiving:
                    raise
                self.notes.append(f"'{word}' protects nothing: {error}.")
                continue
            fitted = None
            if self.scheme.fits:
                with suppress(NothingChosenError):  # no such token there: ranges are fitted with all
                    fitted = self.tokens(wanted, self.calibration)
            arms.append(self.arm(word, tokens, fitted, choice=wanted))
            first = self._first(tokens)
            if self.scheme.protects != "nothing" and all(arm.name != first.name for arm in arms):
                arms.append(first)
        return arms

    def made(self, protect: Tokens | None, fitted: Tokens | None, after: Prefix | None = None) -> Intervention:
        """The intervention: fitted without the tokens `fitted`, serving `protect`."""
        left_out = fitted if self.scheme.fits else protect
        if after is None:
            made = self._make(left_out)
        else:
            with after.applied(self.model):
                made = self.scheme.make(self.model, self.calibration.inputs, left_out)
        return serving(made, protect) if protect is not None and self.scheme.protects == "served" else made

    def tokens(self, choice: Protect, texts: Texts) -> Tokens:
        """What a choice protects in these texts: positions as they were chosen in the texts for calibration."""
        rows = rows_of(columns_of(self.model, texts.inputs))
        if isinstance(choice, Tokens):
            return choice.on(rows)
        tokens, nothing = None, None
        for one in parts_of(choice):
            by_position = isinstance(one, Measured) and one.by == "position"
            try:
                chosen = self._found(one, self.calibration if by_position else texts).on(rows)
            except NothingChosenError as error:
                nothing = nothing or error
                continue
            tokens = chosen if tokens is None else tokens | chosen
            if not by_position and not one.in_a_pass:
                note = f"The tokens of '{one}' are found in the scored texts themselves, in full precision."
                self.notes += [] if note in self.notes else [note]
        if tokens is None:
            assert nothing is not None
            raise nothing
        if not tokens.mask.any():
            raise InputError(f"'{choice}' protects no token of these texts, so there is nothing to compare")
        return tokens

    def arm(
        self, name: str, tokens: Tokens | None, fitted: Tokens | None, *, choice: Protect | None = None, **options: Any
    ) -> Arm:
        """The scheme with some tokens protected; its controls protect as many random ones.

        Args:
            name: The arm's name.
            tokens: The protected tokens of the scored texts; None for none.
            fitted: Tokens of the calibration texts, which are left out when the scheme fits its ranges; None for none.
            choice: The choice that gave `tokens`, for the warnings about it.
            options: Passed to `Arm`.
        """
        # Fitted when the arm first runs, and once for all batches.
        made = cache(lambda: self.made(tokens, fitted))
        self.by_arm[name] = made, choice, None

        @contextmanager
        def opened(model: nn.Module, texts: Texts) -> Iterator[Cache | None]:
            protect = None if tokens is None else tokens.part(texts.rows)
            if self.scheme.store is not None:
                stored = self.scheme.store(model, protect)
                yield stored.keep_decoded() if isinstance(stored, SinkQuantizedCache) else stored
                return
            intervention = made()
            if protect is not None and self.scheme.protects == "served":
                intervention = serving(intervention, protect)
            with intervention.applied(model):
                yield None

        def control(draw: int, texts: Texts) -> Arm:
            assert tokens is not None
            # Two streams of one draw: tokens of the scored texts, and of those that are fitted on.
            random = matched_tokens(tokens, np.random.default_rng([draw, 0]), self.context)
            other = None if fitted is None else fitted.random(np.random.default_rng([draw, 1]))
            return self.arm(f"{name} {draw}", random, other)

        options["first_pass"] = "own" if self.scheme.store is None else "states"
        if tokens is None:
            return Arm(name, opened, facts={"protects": None}, **options)
        facts = {"protects": described(tokens), "tokens_per_text": tokens.count()}
        same = (self.scheme.name, _digest(tokens), None if fitted is None else _digest(fitted))
        touched = self._touched(tokens) if self.scheme.protects == "served" else None
        return Arm(name, opened, control, touched, same=same, facts=facts, **options)

    def _first(self, tokens: Tokens) -> Arm:
        """As many first tokens of each text as are protected there."""
        served, fitted = as_many(tokens), None
        if self.scheme.fits:
            count = math.ceil(tokens.any_head().sum(-1).mean())
            fitted = self.tokens(First(count), self.calibration)
        return replace(self.arm(f"first {tokens.count():.3g}", served, fitted), control=None)

    def _after(self, name: str, prefix: Prefix) -> list[Arm]:
        """A prefix: the unchanged model after it, everything rounded after it, and the same prefix rounded too."""
        in_prefix = own_tokens(prefix, self.scored.inputs)
        full = f"{REFERENCE} after {name}"
        made = cache(lambda: self.made(None, None, prefix))
        plain = cache(lambda: self.made(None, None))
        self.by_arm[name] = made, None, prefix

        @contextmanager
        def opened(inside: Intervention, rounding: Callable[[], Intervention] | None) -> Iterator[None]:
            intervention = None if rounding is None else rounding()  # calibrates before the prefix is there
            with ExitStack() as stack:
                stack.enter_context(inside.applied(self.model))
                if intervention is not None:
                    stack.enter_context(intervention.applied(self.model))
                yield None

        def touched(texts: Texts) -> Bool[Tensor, "text token"]:
            return in_prefix[texts.rows]

        facts = {"prefix": list(prefix.ids), "tokens_per_text": len(prefix.ids)}
        return [
            Arm(full, lambda model, texts: opened(prefix, None), touched=touched, facts=facts),
            Arm(name, lambda model, texts: opened(prefix, made), touched=touched, against=full, facts=facts),
            Arm(
                f"{name}, rounded",
                lambda model, texts: opened(prefix.in_text, plain),
                touched=touched,
                against=full,
                facts=facts,
            ),
        ]

    def _in_a_cache(self, name: str, prefix: Prefix) -> Choice:
        """What a prefix protects in a cache: the tokens that every text begins with."""
        if not bool((own_tokens(prefix, self.scored.inputs).sum(-1) == len(prefix.ids)).all()):
            raise InputError(
                f"'{name}': a scheme of caches reads texts from their first token on, and not all of them begin with "
                f"the prefix {prefix.ids}: give texts that do (prefix.before(ids)), whose first tokens then stay as "
                "they are"
            )
        return First(len(prefix.ids))

    def _touched(self, tokens: Tokens) -> Callable[[Texts], Bool[Tensor, "text token"]] | None:
        if self.scored.ids is None:
            return None
        mask = among(tokens, self._columns).cpu()[:, -self.scored.ids.shape[1] :]  # learned tokens before a sequence
        return lambda texts: mask[texts.rows]


def protected_arm(scheme: str) -> str:
    """The name of the arm of a scheme in which tokens are protected, where several schemes share a trial."""
    return f"{scheme}, protected"


def as_many(tokens: Tokens, end: int | None = None) -> Tokens:
    """As many first tokens of each text as are chosen there; with `end`, as many of the last before token `end`."""
    rows = tokens.rows
    assert rows is not None
    counts, place = tokens.any_head().sum(-1)[:, None], np.arange(rows.real.shape[1])
    mask = place < counts if end is None else (place >= end - counts) & (place < end)
    word = "first" if end is None else "last"
    return Tokens((mask & rows.real)[:, None, None], rows, (), f"as many {word} tokens")


def serving(made: Intervention, protect: Tokens) -> Intervention:
    """An intervention that protects other tokens than those it was built with."""
    if isinstance(made, All):
        return All(tuple(serving(one, protect) for one in made.parts))
    if is_dataclass(made) and any(field.name == "protect" for field in fields(made)):
        return replace(made, protect=protect)  # type: ignore[call-arg]
    return made


def default_choices(scheme: QuantizationScheme) -> dict[str, Protected]:
    """The default of `protect`.

    Where activations are rounded, attention sinks, outlying activations, and both: they need not be the same tokens.
    """
    sinks, outliers = Measured(), Outliers()
    if scheme.rounds_activations:
        return {str(choice): choice for choice in (sinks + outliers, sinks, outliers)}
    return {"measured": sinks} if scheme.caches else {}


def takes(scheme: QuantizationScheme, choices: Iterable[Any] | None) -> Uses:
    """What texts are needed for besides scoring; `choices` None for those that are made by default."""
    if scheme.fits:
        return "fits"
    chosen = default_choices(scheme).values() if choices is None else choices
    return "chooses" if any(map(looks_for_positions, chosen)) else "nothing"


def _choices(
    scheme: QuantizationScheme, protect: str | Protected | Mapping[str, Protected | Find] | None
) -> dict[str, Protected | Find]:
    if protect is None:
        return {**default_choices(scheme)}
    if isinstance(protect, str):
        choice = parse(protect)
        return {} if choice is None else {str(choice): choice}
    if isinstance(protect, Known):
        name = "prefix" if isinstance(protect, Prefix) else protect.chosen_by if isinstance(protect, Tokens) else ""
        return {name or str(protect): protect}
    choices = dict(protect)
    if not all(isinstance(choice, Known) or callable(choice) for choice in choices.values()):
        raise InputError("protect: expected a choice of tokens such as Measured(), its words, or several by name")
    return choices


def looks_for_positions(choice: object) -> bool:
    """Whether it needs texts that are not scored: for positions, which must hold in others, or to find a prefix."""
    if not isinstance(choice, Choice):
        return not isinstance(choice, Known)
    measured = (one for one in parts_of(choice) if isinstance(one, Measured))
    return any(one.by == "position" and one.measurement is None for one in measured)


def _digest(tokens: Tokens) -> str:
    return hashlib.sha256(np.packbits(tokens.any_head()).tobytes()).hexdigest()


def _warn(arms: list[Arm], built: SchemeArms, baseline: Intervention) -> None:
    """Warnings about an intervention that was calibrated before it came here."""
    warn_of_choice(built.scheme.name, baseline, None)
    for arm in arms:
        made, choice, prefix = built.by_arm.get(arm.name, (None, None, None))
        if made is not None and choice is not None:
            warn_of_choice(arm.name, made(), choice)
        if made is not None and prefix is not None:
            warn_of_prefix(arm.name, made())


def _notes(model: nn.Module, quantizer: Intervention, record: Mapping[str, Any]) -> list[str]:
    """What of the model is rounded at all, and whether its weights had been rounded before."""
    notes = []
    if rounds_weights(quantizer) and (weights := weights_as_read(model)).rounded:
        notes.append(
            f"The model has {weights.says}: they were rounded before, so this cost of rounding them says nothing about "
            "weights in full precision."
        )
    if "columns_kept" in record:
        notes.append(
            f"It leaves {100 * record['columns_kept']:.0f} % of the columns in full precision, of "
            f"{record['columns_kept_in']} {100 * record['columns_kept_most']:.0f} %."
        )
    if record.get("layers_rounded") != record.get("layers"):
        notes.append(
            f"{record['layers_rounded']} of {record['layers']} layers are rounded, "
            f"{100 * record['bytes_rounded']:.0f} % of the cache's bytes at this length; the others (windows, states, "
            "the ends that a scheme leaves alone) stay whole."
        )
    return notes


def _without_bytes(trial: Trial) -> Trial:
    """A simulation holds everything in full precision: its arms have no bytes."""
    reference = trial.data["arm"] == trial.arms[0]
    return Trial(trial.data.assign({name: trial.data[name].where(reference) for name in ("bytes", "bytes_16")}))


def _sentences(trial: Trial) -> list[str]:
    """The cost of rounding everything; then the choices, the one first that gives back most; then prefixes."""
    base = trial.baseline
    assert base is not None
    lines = [f"'{base}' {trial.cost_in_words(base)}."]
    if trial.word(base) == "breaks":
        return [*lines, "It breaks the model, so nothing is ranked against it."]
    if not trial.cost(base).low > 0:
        return [*lines, "That cannot be told from 0, so there is nothing to give back."]
    facts = trial.record.get("arms", {})
    arms = trial.named("arm")
    prefixed = [name for name in arms if "prefix" in facts.get(name, {})]
    tokens = [name for name in arms if name not in prefixed]
    ranked = sorted(tokens, key=lambda name: trial.mean(name).value)
    lines += [trial.sentence(name) for name in ranked]
    chosen = [name for name in ranked if trial.controls(name)]
    if len(chosen) > 1 and not np.array_equal(trial.values(chosen[0]), trial.values(chosen[1])):
        gain = -trial.difference(chosen[0], chosen[1])
        if gain.low > 0:
            lines.append(f"'{chosen[0]}' is better than '{chosen[1]}', by {nats(gain)}.")
        else:
            lines.append(f"'{chosen[0]}' and '{chosen[1]}' cannot be told apart (difference {nats(gain)}).")
    for name in prefixed:
        if f"{REFERENCE} after {name}" in prefixed:
            lines.append(_of_prefix(trial, name))
    return lines if tokens or prefixed else [*lines, "No tokens were protected."]


def _of_prefix(trial: Trial, name: str) -> str:
    """What a prefix costs by itself, what it gives back, and what its full-precision keys and values are worth."""
    full, null = f"{REFERENCE} after {name}", f"{name}, rounded"
    loss = trial.cost(full, "nats") if trial._has("nats") else trial.cost(full)
    worth = -trial.difference(name, null)
    text = f"'{name}' gives back {percent(trial.recovered(name))} of the KL; the text that it changes costs "
    text += f"{nats(loss, signed=True)} nats in full precision; "
    if worth.low > 0:
        return f"{text}kept in full precision it beats the same prefix rounded by {nats(worth)}."
    if worth.high < 0:
        return f"{text}the same prefix rounded is better, by {nats(-worth)}."
    return f"{text}it cannot be told from the same prefix rounded (difference {nats(worth)})."


SENTENCES[KIND] = _sentences
