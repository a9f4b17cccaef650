"""How many bits the cache needs, what protecting the sinks in it recovers, and how many bytes that takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from torch import nn
from transformers import Cache

from sinkscope.checks.row import ADVISED, Answered, Row
from sinkscope.checks.section import CheckSection, Progress
from sinkscope.checks.subject import CheckedModel, TextSet
from sinkscope.measurement import rows_of
from sinkscope.model.columns import columns_of
from sinkscope.quantization import drawn_from, full_layers, scheme_named
from sinkscope.sinks import Tokens
from sinkscope.statistics import Interval
from sinkscope.trials import REFERENCE, Arm, Texts, ThroughCache, Trial, run

BITS = (8, 4, 2)
KIND = "kivi"  # keys by channel in groups of 32 tokens, values by token
GROUP = 32


def applies(subject: CheckedModel) -> str:
    """Empty for a causal decoder whose cache has layers of full attention."""
    if why := subject.decodes():
        return why
    if not full_layers(subject.model):
        return "no layer keeps keys and values of all tokens (windows and states alone)"
    if subject.sets[0].ids.shape[1] // 2 < GROUP:
        return f"texts of {subject.sets[0].ids.shape[1]} tokens close no group of {GROUP} tokens: give longer texts"
    return ""


def run_section(subject: CheckedModel, texts: TextSet, progress: Progress | None) -> Answered:
    """Caches of 8, 4 and 2 bits, each plain, with its sinks protected, and with as many random tokens protected."""
    model = subject.model
    given = Texts.of(model, texts.ids)
    sinks = subject.sinks(texts)
    tokens = None if sinks is None else sinks.on(rows_of(columns_of(model, given.inputs)))
    arms, context = [], int(texts.ids.shape[1] // 2)
    for bits in BITS:
        arms.append(_arm(f"{bits} bits", bits, None, context))
        if tokens is not None:
            arms.append(_arm(f"{bits} bits, protected", bits, tokens, context))
    trial = run(
        model,
        given,
        arms,
        reading=ThroughCache(context, None),
        controls=subject.controls,
        batch_size=subject.at_once(texts),
        seed=subject.seed,
        calibrated_on={"texts": len(texts.choosing), "in_sample": False},
        about={"kind": "cache-bits"},
        progress=progress,
    )
    rows = [_row(trial, bits, protected, sinks) for bits in BITS for protected in (False, True)]
    found = [row for row in rows if row is not None]
    return Answered(_answer(trial, found, sinks), tuple(found), {"context": context, "scheme": KIND})


def _arm(name: str, bits: int, tokens: Tokens | None, context: int) -> Arm:
    scheme = scheme_named(f"kv{bits}-{KIND}")
    assert scheme.store is not None
    store = scheme.store

    @contextmanager
    def opened(model: nn.Module, texts: Texts) -> Iterator[Cache | None]:
        yield store(model, None if tokens is None else tokens.part(texts.rows))

    def control(draw: int, texts: Texts) -> Arm:
        assert tokens is not None
        random = tokens.random(np.random.default_rng([draw, bits]), free=drawn_from(tokens, context))
        return _arm(f"{name} {draw}", bits, random, context)

    facts = {"scheme": scheme.name, "protects": None if tokens is None else list(tokens.positions)[:16]}
    return Arm(name, opened, None if tokens is None else control, full_prompt=True, facts=facts)


def _row(trial: Trial, bits: int, protected: bool, sinks: Tokens | None) -> Row | None:
    plain = f"{bits} bits"
    name = f"{plain}, protected" if protected else plain
    if name not in trial.arms:
        return None
    grade, cost = trial.grade(name), trial.cost(name)
    held, share = compared_bytes(trial, name)
    finding = plain
    why = grade.why
    if protected and sinks is not None:
        finding = f"{plain}, {_where(sinks)} whole"
        why = "; ".join(filter(None, (why, _given_back(trial, name, plain))))
    advice = ""
    # Nothing is saved where short texts leave most tokens open, or windows hold more than all else.
    if share < 1 and grade.word in ADVISED:
        if not protected:
            advice = f"use {bits} bits"
        elif trial.word(plain) not in ADVISED and _beats(trial, name):
            advice = f"use {bits} bits with {_where(sinks)} kept whole"
    return Row(
        f"kv{bits}{'-protected' if protected else ''}",
        finding,
        cost,
        "KL a token",
        trial.texts,
        grade.word,
        why,
        advice,
        bytes=held,
        of_16=share,
        values=tuple(trial.values(name).tolist()),
    )


def compared_bytes(trial: Trial, name: str) -> tuple[float, float]:
    """Bytes of a cache after the context of a text, and their share of a cache in 16 bits."""
    held, full = (float(trial.data["bytes"].sel(arm=arm)) for arm in (name, REFERENCE))
    # The reference cache is in the model's dtype: in 16 bits it would take full · 2 / size.
    size = {"float32": 4, "float64": 8}.get(trial.record["dtype"], 2)
    return held, held / (full * 2 / size)


def _given_back(trial: Trial, name: str, plain: str) -> str:
    """The share of the KL that protecting recovers, and whether random tokens do as much."""
    back: Interval = trial.recovered(name, of=plain)
    if not np.isfinite(back.value):
        return ""
    said = f"gives back {100 * back.value:.0f} % ({100 * back.low:.0f} to {100 * back.high:.0f})"
    if trial.controls(name):
        gain = trial.difference(name)
        if gain.high >= 0:
            return f"{said}, no more than random tokens"
    return said


def _where(sinks: Tokens | None) -> str:
    assert sinks is not None
    places = sinks.positions
    if len(places) == 1:
        return f"position {places[0]}"
    return f"{len(places)} positions" if len(places) > 3 else f"positions {', '.join(map(str, places))}"


def _answer(trial: Trial, rows: list[Row], sinks: Tokens | None) -> str:
    """The words of all bits, what protecting recovers where it beats random tokens, and what to do."""
    plain = {bits: next(row for row in rows if row.key == f"kv{bits}") for bits in BITS}
    answer = ", ".join(f"{bits} bits {row.word}" for bits, row in plain.items())
    said = [f"{answer}."]
    if sinks is None:
        said.append("There is no sink to protect.")
    else:
        names = {bits: f"{bits} bits, protected" for bits in BITS}
        helped = [bits for bits in BITS if plain[bits].word != "free" and _beats(trial, names[bits])]
        where = _where(sinks)
        if helped:
            back = _given_back(trial, names[helped[-1]], f"{helped[-1]} bits") or "helps"
            said.append(f"At {helped[-1]} bits keeping {where} whole {back}: {trial.word(names[helped[-1]])}.")
        elif any(trial.controls(name) for name in names.values()):
            said.append(f"Keeping {where} whole is worth no more than keeping random tokens.")
    advised = [row for row in rows if row.advice]
    if advised:
        fewest = min(advised, key=lambda row: row.of_16 or 1.0)
        share = 100 * (fewest.of_16 or 1.0)
        said.append(f"{fewest.advice[:1].upper()}{fewest.advice[1:]}: {share:.0f} % of the bytes of a 16-bit cache.")
    else:
        said.append("Leave the cache in 16 bits.")
    return " ".join(said)


def _beats(trial: Trial, name: str) -> bool:
    """Whether protecting costs less than protecting as many random tokens."""
    return bool(trial.controls(name)) and trial.difference(name).high < 0


SECTION = CheckSection("cache", "Cache bits", "default", applies, 0.9 * (1 + 3 * len(BITS)) + 0.5, run_section)
