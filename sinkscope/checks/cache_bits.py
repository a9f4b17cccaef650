"""How many bits the cache needs, how much protecting the sinks recovers, and the bytes of each variant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
from torch import nn
from transformers import Cache

from sinkscope.caches import engine
from sinkscope.checks.row import ADVISED, Answered, Row
from sinkscope.checks.section import CheckSection, Progress
from sinkscope.checks.sizes import cache_bytes
from sinkscope.checks.subject import CheckedModel, TextSet
from sinkscope.errors import InputError
from sinkscope.measurement import rows_of
from sinkscope.model.columns import columns_of
from sinkscope.quantization import matched_tokens, scheme_named
from sinkscope.sinks import Tokens
from sinkscope.statistics import Interval
from sinkscope.trials import Arm, Texts, ThroughCache, Trial, cached, feeding, run

BITS = (8, 4, 2)
SERVED = ("llama.cpp-q8_0", "llama.cpp-q4_0", "vllm-fp8")
"""Caches that engines have, so that also the default tier knows lines for them; `served` has the others."""
KIND = "kivi"  # keys by channel in groups of 32 tokens, values by token
GROUP = 32


def obstacle(subject: CheckedModel) -> str:
    """Empty for a causal decoder whose cache has layers of full attention, on texts that fill a group."""
    if reason := subject.cache_obstacle():
        return reason
    if subject.sets[0].ids.shape[1] // 2 < GROUP:
        return f"texts of {subject.sets[0].ids.shape[1]} tokens close no group of {GROUP} tokens: give longer texts"
    return ""


def run_section(subject: CheckedModel, texts: TextSet, progress: Progress | None) -> Answered:
    """Caches of 8, 4 and 2 bits: without protection, with protected sinks, with as many random tokens protected.

    Then three caches of engines.
    """
    model = subject.model
    scored = Texts.of(model, texts.ids)
    sinks = subject.sinks(texts)
    tokens = None if sinks is None else sinks.on(rows_of(columns_of(model, scored.inputs)))
    arms, context = [], int(texts.ids.shape[1] // 2)
    for bits in BITS:
        arms.append(_arm(f"{bits} bits", bits, None, context))
        if tokens is not None:
            arms.append(_arm(f"{bits} bits, protected", bits, tokens, context))
    served = [cached(name, engine(name).cache, facts=engine(name).describe()) for name in SERVED]
    served = [arm for arm in served if not arm_obstacle(subject, texts, arm)]
    arms += served
    trial = run(
        model,
        scored,
        arms,
        reading=ThroughCache(context, None),
        controls=subject.controls,
        batch_size=subject.texts_per_pass(texts),
        seed=subject.seed,
        calibrated_on={"texts": len(texts.calibration), "in_sample": False},
        about={"kind": "cache-bits"},
        progress=progress,
    )
    sizes = {arm.name: cache_bytes(subject, texts, arm) for arm in arms}
    variants = [(bits, protected) for bits in BITS for protected in ((False,) if sinks is None else (False, True))]
    rows = [_row(trial, bits, protected, sinks, sizes) for bits, protected in variants]
    served_rows = [served_row(trial, arm.name, sizes[arm.name]) for arm in served]
    return Answered(
        _answer(trial, rows, served_rows, sinks),
        (*rows, *served_rows),
        {"context": context, "scheme": KIND, "windows": sorted(set(subject.windows))},
        advised_by=tuple(row.key for row in sorted(rows, key=lambda row: row.of_16 or 1.0)),
        otherwise="Leave the cache in 16 bits.",
    )


def arm_obstacle(subject: CheckedModel, texts: TextSet, arm: Arm) -> str:
    """Why a cache cannot be compared on this model; empty if it can.

    Reads one text: a format may not store heads of this width, or numbers of this size.
    """
    ids, half = texts.ids[:1], texts.ids.shape[1] // 2
    try:
        with feeding(subject.model, arm, ids) as feed:
            feed.read(ids[:, :half])
            return "its predictions are NaN" if bool(feed.read(ids[:, half:]).isnan().any()) else ""
    except InputError as error:
        return str(error)


def served_row(trial: Trial, name: str, size: tuple[float, float]) -> Row:
    """The row of a cache as an engine has it. `size`: its bytes, and their share of a 16-bit cache."""
    grade = trial.grade(name)
    advice = f"{name} is safe" if grade.word in ADVISED else ""
    values = tuple(trial.values(name).tolist())
    return Row(name, name, trial.cost(name), "KL a token", trial.texts, grade.word, grade.why, advice, *size, values)


def _arm(name: str, bits: int, tokens: Tokens | None, context: int) -> Arm:
    scheme = scheme_named(f"kv{bits}-{KIND}")
    assert scheme.store is not None
    store = scheme.store

    @contextmanager
    def opened(model: nn.Module, texts: Texts) -> Iterator[Cache | None]:
        yield store(model, None if tokens is None else tokens.part(texts.rows))

    def control(draw: int, texts: Texts) -> Arm:
        assert tokens is not None
        random = matched_tokens(tokens, np.random.default_rng([draw, bits]), context)
        return _arm(f"{name} {draw}", bits, random, context)

    facts = {"scheme": scheme.name, "protects": None if tokens is None else list(tokens.positions)[:16]}
    return Arm(name, opened, None if tokens is None else control, first_pass="states", facts=facts)


def _row(
    trial: Trial, bits: int, protected: bool, sinks: Tokens | None, sizes: Mapping[str, tuple[float, float]]
) -> Row:
    plain = f"{bits} bits"
    name = f"{plain}, protected" if protected else plain
    grade, cost = trial.grade(name), trial.cost(name)
    size, share = sizes[name]
    finding, why = plain, grade.why
    if protected:
        finding = f"{plain}, {_positions(sinks)} whole"
        why = "; ".join(filter(None, (why, _recovered(trial, name, plain))))
    advice = ""
    # Rounding saves nothing if groups stay open in short texts, or if windows hold most of the bytes.
    if share < 1 and grade.word in ADVISED:
        if not protected:
            advice = f"use {bits} bits"
        elif trial.word(plain) != "free" and _beats_random(trial, name):
            advice = f"use {bits} bits with {_positions(sinks)} kept whole"
    return Row(
        f"kv{bits}{'-protected' if protected else ''}",
        finding,
        cost,
        "KL a token",
        trial.texts,
        grade.word,
        why,
        advice,
        bytes=size,
        of_16=share,
        values=tuple(trial.values(name).tolist()),
    )


def _recovered(trial: Trial, name: str, plain: str) -> str:
    """The share of the KL that protecting recovers, and whether random tokens recover as much; empty if undefined."""
    share: Interval = trial.recovered(name, of=plain)
    if not np.isfinite(share.value):
        return ""
    text = f"gives back {100 * share.value:.0f} % ({100 * share.low:.0f} to {100 * share.high:.0f})"
    if trial.controls(name) and trial.difference(name).high >= 0:
        text += ", no more than random tokens"
    return text


def _positions(sinks: Tokens | None) -> str:
    assert sinks is not None
    positions = sinks.positions
    if len(positions) == 1:
        return f"position {positions[0]}"
    return f"{len(positions)} positions" if len(positions) > 3 else f"positions {', '.join(map(str, positions))}"


def _answer(trial: Trial, rows: list[Row], served: list[Row], sinks: Tokens | None) -> str:
    """The grades of all bits, how much protecting recovers if it beats random tokens, and the grades of engines."""
    plain = {bits: next(row for row in rows if row.key == f"kv{bits}") for bits in BITS}
    grades = ", ".join(f"{bits} bits {row.word}" for bits, row in plain.items())
    sentences = [f"{grades}."]
    if sinks is None:
        sentences.append("There is no sink to protect.")
    else:
        names = {bits: f"{bits} bits, protected" for bits in BITS}
        helped = [bits for bits in BITS if plain[bits].word != "free" and _beats_random(trial, names[bits])]
        where = _positions(sinks)
        if helped:
            name = names[helped[-1]]
            effect = _recovered(trial, name, f"{helped[-1]} bits") or "helps"
            sentences.append(f"At {helped[-1]} bits keeping {where} whole {effect}: {trial.word(name)}.")
        elif any(trial.controls(name) for name in names.values()):
            sentences.append(f"Keeping {where} whole is worth no more than keeping random tokens.")
    if served:
        sentences.append(f"As engines store it: {', '.join(f'{row.finding} {row.word}' for row in served)}.")
    return " ".join(sentences)


def _beats_random(trial: Trial, name: str) -> bool:
    """Whether protecting costs less than protecting as many random tokens."""
    return bool(trial.controls(name)) and trial.difference(name).high < 0


PASSES = 0.9 * (1 + 3 * len(BITS) + len(SERVED)) + 0.5
SECTION = CheckSection(
    "cache",
    "Cache bits",
    "default",
    obstacle,
    (*(f"kv{bits}{protected}" for bits in BITS for protected in ("", "-protected")), *SERVED),
    PASSES,
    run_section,
)
