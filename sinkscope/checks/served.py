"""The cost of caches as engines run them: further rounded ones, and streams that keep the first tokens or none."""

from __future__ import annotations

from typing import Any

from sinkscope.caches import engine
from sinkscope.checks.cache_bits import SERVED, arm_obstacle, served_row
from sinkscope.checks.row import ADVISED, Answered, Row
from sinkscope.checks.section import CheckSection, Progress
from sinkscope.checks.sizes import cache_bytes, stream_bytes
from sinkscope.checks.subject import CheckedModel, TextSet
from sinkscope.checks.whole_layers import calibrated_fp8, skip_row, vllm_caches
from sinkscope.errors import InputError
from sinkscope.trials import Arm, ThroughCache, Trial, cached, run

ROUNDED = ("llama.cpp-q5_1", "llama.cpp-q5_0", "llama.cpp-q4_1", "llama.cpp-iq4_nl")
STREAMS = ("llama.cpp", "mlx", "executorch")
BEGINNING = 16  # engines keep first tokens, so sinks beyond this position are ignored
STREAMED = 8  # texts that are streamed


def run_section(subject: CheckedModel, texts: TextSet, progress: Progress | None) -> Answered:
    """Rounded caches compared with the model's own, and streams with the sinks compared with those without."""
    rounded, streams = _rounded_caches(subject, texts, progress), _streams(subject, texts, progress)
    answer = " ".join(filter(None, (rounded.answer, streams.answer)))
    return Answered(answer, (*rounded.rows, *streams.rows), {**rounded.facts, **streams.facts})


def _rounded_caches(subject: CheckedModel, texts: TextSet, progress: Progress | None) -> Answered:
    rows: list[Row] = []
    sentences = []
    facts: dict[str, Any] = {"windows": sorted(set(subject.windows))}
    vllm, reasons = vllm_caches(subject.model)
    arms = [cached(name, engine(name).cache, facts=engine(name).describe()) for name in ROUNDED]
    arms += [cache.arm(name) for name, cache in vllm.items()]
    arms += [calibrated_fp8(subject, texts)] if "vllm-fp8" in vllm else []
    reasons |= {arm.name: reason for arm in arms if (reason := arm_obstacle(subject, texts, arm))}
    arms = [arm for arm in arms if arm.name not in reasons]
    if arms:
        trial = run(
            subject.model,
            texts.ids,
            arms,
            reading=ThroughCache(texts.ids.shape[1] // 2, None),
            controls=0,
            batch_size=subject.texts_per_pass(texts),
            seed=subject.seed,
            about={"kind": "engines"},
            progress=progress,
        )
        # `cache_bits` has the rows of `SERVED`; one is here too, since layers may be left whole in it.
        shown = [arm for arm in arms if arm.name not in SERVED]
        # Scales per layer take no bytes to speak of, and the calibrated cache is simulated in full precision.
        as_held = {"vllm-fp8-calibrated": vllm["vllm-fp8"].arm("vllm-fp8")} if "vllm-fp8" in vllm else {}
        sizes = {arm.name: cache_bytes(subject, texts, as_held.get(arm.name, arm)) for arm in shown}
        rows += [served_row(trial, arm.name, sizes[arm.name]) for arm in shown]
        sentences.append(f"{', '.join(f'{row.finding} {row.word}' for row in rows)}." if rows else "")
        unsafe = [vllm[arm.name] for arm in arms if arm.name in vllm and trial.word(arm.name) not in ADVISED]
        if unsafe and (skipping := skip_row(subject, texts, unsafe[0], progress)) is not None:
            row, facts["skip_layers"] = skipping
            rows.append(row)
            sentences.append(f"{row.finding}: {row.word}{f', {row.why}' if row.why else ''}.")
    for reason in dict.fromkeys(reasons.values()):
        names = [name for name in reasons if reasons[name] == reason]
        sentences.append(f"Not run: {', '.join(names)} ({reason}).")
    return Answered(" ".join(filter(None, sentences)), tuple(rows), facts)


def _streams(subject: CheckedModel, texts: TextSet, progress: Progress | None) -> Answered:
    """Streams of half as many cells as a text has tokens, that keep the sinks of the first set of texts."""
    sinks = subject.sinks(subject.sets[0])
    beginning = [] if sinks is None else [place for place in sinks.positions if place < BEGINNING]
    if not beginning:
        return Answered("No stream was tried: there is no sink at the beginning to keep.")
    keep = max(beginning) + 1
    ids = texts.ids[:STREAMED]
    cells = ids.shape[1] // 2
    facts = {"keep": keep, "cells": cells, "tokenizer_adds": subject.tokenizer_adds}
    try:
        trial = run(
            subject.model,
            ids,
            [arm for name in STREAMS for arm in _stream_arms(name, keep, cells)],
            reading=ThroughCache(cells // 2, None),  # in pieces, with what tokens one by one would see
            controls=0,
            batch_size=len(ids),
            seed=subject.seed,
            about={"kind": "engines"},
            progress=progress,
        )
    except InputError as error:
        return Answered(f"Streams: {error}.", facts=facts)
    size = stream_bytes(subject, ids, cells)
    rows = [_stream_row(trial, name, keep, cells, size) for name in STREAMS]
    better = [row.key for row in rows if row.advice]
    tokens = f"the first {keep} tokens" if keep > 1 else "the first token"
    if better:
        answer = f"Streams of {cells} cells that keep {tokens} predict better than without in {', '.join(better)}."
    else:
        answer = f"Streams of {cells} cells gain nothing by keeping {tokens}."
    return Answered(answer, tuple(rows), facts)


def _stream_arms(name: str, keep: int, cells: int) -> list[Arm]:
    """An engine's stream that keeps no first tokens, and the one that keeps them, compared with it."""
    without, kept = (engine(name, count) for count in (0, keep))
    plain = f"{name} without"
    return [
        cached(plain, lambda model: without.cache(model, cells), facts=without.describe(cells)),
        cached(name, lambda model: kept.cache(model, cells), against=plain, facts=kept.describe(cells)),
    ]


def _stream_row(trial: Trial, name: str, keep: int, cells: int, size: tuple[float, float]) -> Row:
    cost = trial.cost(name, "nats")
    values = trial.values(name, "nats") - trial.values(f"{name} without", "nats")
    return Row(
        name,
        f"{name}, {keep} of {cells} cells kept",
        cost,
        "nats lost a token against keeping none",
        trial.texts,
        "",
        "",
        f"keep {keep}" if cost.high < 0 else "",
        *size,
        tuple(values.tolist()),
    )


SECTION = CheckSection(
    "engines",
    "As engines cache",
    "full",
    CheckedModel.cache_obstacle,
    (*ROUNDED, "vllm-fp8-calibrated", "vllm-turboquant_*_nc", "vllm-*-skip", *STREAMS),
    12.0,
    run_section,
)
