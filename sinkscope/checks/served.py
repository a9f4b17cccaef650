"""What caches cost as engines run them: rounded ones, and streams that keep the sinks or nothing of the beginning."""

from __future__ import annotations

from typing import Any

from sinkscope.caches import engine
from sinkscope.checks.cache_bits import compared_bytes
from sinkscope.checks.row import ADVISED, Answered, Row
from sinkscope.checks.section import CheckSection, Progress
from sinkscope.checks.subject import CheckedModel, TextSet
from sinkscope.checks.whole_layers import bytes_of, skip_rows, vllm_caches
from sinkscope.errors import InputError
from sinkscope.quantization import full_layers
from sinkscope.trials import Arm, ThroughCache, Trial, cached, feeding, run

ROUNDED = ("llama.cpp-q8_0", "llama.cpp-q4_0")
STREAMS = ("llama.cpp", "mlx", "executorch")
FURTHEST = 16  # sinks beyond that position are none of the beginning, which is what engines keep
STREAMED = 12  # texts that are read token by token
SHARE = 2  # of a text's tokens, as cells of a stream: half


def applies(subject: CheckedModel) -> str:
    """Empty for a causal decoder whose cache has layers of full attention."""
    if why := subject.decodes():
        return why
    return "" if full_layers(subject.model) else "no layer keeps keys and values of all tokens"


def run_section(subject: CheckedModel, texts: TextSet, progress: Progress | None) -> Answered:
    """Rounded caches against the model's own, and each stream with the sinks against the same one without."""
    rows, said = [], []
    facts: dict[str, Any] = {}
    served, reasons = vllm_caches(subject.model)
    vllm = {one.name: one for one in served}
    arms = [cached(name, engine(name).cache, facts=engine(name).describe()) for name in ROUNDED]
    arms += [one.arm(name) for name, one in vllm.items()]
    refused = {arm.name: why for arm in arms if (why := _refused(subject, texts, arm))}
    arms = [arm for arm in arms if arm.name not in refused]
    if arms:
        trial = run(
            subject.model,
            texts.ids,
            arms,
            reading=ThroughCache(texts.ids.shape[1] // 2, None),
            controls=0,
            batch_size=subject.at_once(texts),
            seed=subject.seed,
            about={"kind": "engines"},
            progress=progress,
        )
        for arm in arms:
            one = vllm.get(arm.name)
            size = compared_bytes(trial, arm.name) if one is None else bytes_of(subject, texts, trial, arm.name, one)
            rows.append(_rounded(trial, arm.name, size))
        said.append(f"{', '.join(f'{row.finding} {row.word}' for row in rows)}.")
        unsafe = next(
            (vllm[name] for name in trial.named("arm") if name in vllm and trial.word(name) not in ADVISED), None
        )
        if unsafe is not None and (tried := skip_rows(subject, texts, unsafe, progress)) is not None:
            row, facts["skip_layers"] = tried
            rows.append(row)
            said.append(f"{row.finding}: {row.word}{f', {row.why}' if row.why else ''}.")
    why_not: dict[str, list[str]] = {}
    for name, why in {**reasons, **refused}.items():
        why_not.setdefault(why, []).append(name)
    said += [f"Not run: {', '.join(names)} ({why})." for why, names in why_not.items()]
    keep = kept_first(subject, texts)
    if not keep:
        said.append("No stream was tried: there is no sink at the beginning to keep.")
        return Answered(" ".join(said), tuple(rows), facts)
    ids = texts.ids[:STREAMED]
    cells = ids.shape[1] // SHARE
    try:
        streams = [arm for name in STREAMS for arm in _streams(name, keep, cells)]
        trial = run(
            subject.model,
            ids,
            streams,
            reading=ThroughCache(cells // 2, 1),
            controls=0,
            batch_size=len(ids),
            seed=subject.seed,
            about={"kind": "engines"},
            progress=progress,
        )
        found = [_stream(trial, name, keep, cells) for name in STREAMS]
        rows += found
        better = [row.key for row in found if row.number is not None and row.number.high < 0]
        what = f"the first {keep} tokens" if keep > 1 else "the first token"
        said.append(
            f"Streams of {cells} cells that keep {what} predict better than without in {', '.join(better)}."
            if better
            else f"Streams of {cells} cells gain nothing by keeping {what}."
        )
    except InputError as error:
        said.append(f"Streams: {error}.")
    return Answered(" ".join(said), tuple(rows), {**facts, "keep": keep, "cells": cells})


def _refused(subject: CheckedModel, texts: TextSet, arm: Arm) -> str:
    """Why a cache cannot be compared on this model, from one text: heads of a width that a format does not store,
    numbers beyond its range. Empty where it can."""
    one, half = texts.ids[:1], texts.ids.shape[1] // 2
    try:
        with feeding(subject.model, arm, one) as feed:
            feed.read(one[:, :half])
            return "its predictions are NaN" if bool(feed.read(one[:, half:]).isnan().any()) else ""
    except InputError as error:
        return str(error)


def kept_first(subject: CheckedModel, texts: TextSet) -> int:
    """First tokens that hold all sinks of the beginning: 0 where there are none."""
    sinks = subject.sinks(texts)
    return max((place + 1 for place in (() if sinks is None else sinks.positions) if place < FURTHEST), default=0)


def _streams(name: str, keep: int, cells: int) -> list[Arm]:
    """The stream that keeps nothing, and the one that keeps the sinks, which is compared with it."""
    without, kept = (engine(name, count) for count in (0, keep))
    plain = f"{name} without"
    return [
        cached(plain, lambda model: without.cache(model, cells), facts=without.describe(cells)),
        cached(name, lambda model: kept.cache(model, cells), against=plain, facts=kept.describe(cells)),
    ]


def _rounded(trial: Trial, name: str, size: tuple[float, float]) -> Row:
    grade = trial.grade(name)
    advice = f"{name} is safe" if grade.word in ADVISED else ""
    values = tuple(trial.values(name).tolist())
    number = trial.cost(name)
    return Row(name, name, number, "KL a token", trial.texts, grade.word, grade.why, advice, *size, values)


def _stream(trial: Trial, name: str, keep: int, cells: int) -> Row:
    lost = trial.cost(name, "nats")
    values = trial.values(name, "nats") - trial.values(f"{name} without", "nats")
    return Row(
        name,
        f"{name}, {keep} of {cells} cells kept",
        lost,
        "nats lost a token against keeping none",
        trial.texts,
        advice=f"keep {keep}" if lost.high < 0 else "",
        values=tuple(values.tolist()),
    )


SECTION = CheckSection("engines", "As engines cache", "full", applies, 24.0, run_section, every=False)
