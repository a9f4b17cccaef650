"""Can it stream, and what must be kept: caches of 128 keys with 0, 1, 2 and 4 first tokens, on long texts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from transformers import Cache
from transformers.modeling_outputs import CausalLMOutput

from sinkscope.caches import StreamingCache
from sinkscope.checks.row import ADVISED, Answered, Row
from sinkscope.checks.section import CheckSection, Progress
from sinkscope.checks.subject import CheckedModel, TextSet
from sinkscope.errors import InputError
from sinkscope.trials import Arm, OnePass, Texts, Trial, run

SINKS = (0, 1, 2, 4)
MOST = SINKS[-1]
KEYS = 128


def applies(subject: CheckedModel) -> str:
    """Empty for a causal decoder with positions that a stream can turn, and a tokenizer."""
    if why := subject.reads_text() or subject.decodes():
        return why
    try:
        StreamingCache(subject.model, 1, KEYS - 1)
    except InputError as error:
        return str(error)
    return ""


def run_section(subject: CheckedModel, texts: TextSet, progress: Progress | None) -> Answered:
    """Streams of the same number of keys, those with fewer sinks against the one with four; that against all keys."""
    assert subject.long is not None
    long = subject.long()
    length = long.ids.shape[1]
    keys = min(KEYS, length // 4)
    arms = [_arm(sinks, keys, name(MOST) if sinks != MOST else "full") for sinks in SINKS]
    trial = run(
        subject.model,
        long.ids,
        arms,
        reading=OnePass(from_token=keys),
        controls=0,
        # As many tokens at once as in batches of the usual texts.
        batch_size=max(1, subject.batch_size * 128 // length),
        seed=subject.seed,
        about={"kind": "check-streaming", "keys": keys},
        progress=progress,
    )
    rows = [_row(trial, sinks, keys) for sinks in SINKS]
    return Answered(
        _answer(rows, keys, long.says), tuple(rows), {"keys": keys, "texts": long.says, "sha256": long.sha256}
    )


def name(sinks: int) -> str:
    """Of an arm."""
    return f"{sinks} first tokens kept" if sinks != 1 else "1 first token kept"


def _arm(sinks: int, keys: int, against: str) -> Arm:
    """A stream that reads texts in chunks, exactly as token by token."""

    @contextmanager
    def opened(model: nn.Module, texts: Texts) -> Iterator[Cache | None]:
        cache = StreamingCache(model, sinks, keys - sinks)
        # `cache.read` calls the model itself: `inside` passes those calls on to the original forward.
        inner, inside = model.forward, False

        @wraps(inner)
        def forward(*args: Any, **given: Any) -> Any:
            nonlocal inside
            if inside:
                return inner(*args, **given)
            inside = True
            try:
                parts = [out.logits for out in cache.read(model, given["input_ids"], KEYS)]
            finally:
                inside = False
            return CausalLMOutput(logits=torch.cat(parts, 1))

        with patch.object(model, "forward", forward):
            yield None

    return Arm(name(sinks), opened, against=against, facts={"sinks": sinks, "keys": keys})


def _row(trial: Trial, sinks: int, keys: int) -> Row:
    arm = name(sinks)
    grade, lost = trial.grade(arm), trial.cost(arm, "nats")
    against = str(trial.data["against"].sel(arm=arm).values)
    values = trial.values(arm, "nats") - trial.values(against, "nats")
    what = "all keys" if sinks == MOST else name(MOST)
    advice = f"keep {sinks}" if sinks != MOST and grade.word in ADVISED else ""
    return Row(
        f"sinks-{sinks}",
        f"{sinks} kept of {keys} keys",
        lost,
        f"nats lost a token against {what}",
        trial.texts,
        grade.word,
        grade.why,
        advice,
        values=tuple(values.tolist()),
    )


def _answer(rows: list[Row], keys: int, texts: str) -> str:
    """The fewest first tokens that do what four do."""
    parts = [f"{row.key.removeprefix('sinks-')} {row.number.value:+.3f}" for row in rows[:-1] if row.number]
    said = f"in nats a token against a stream of {keys} keys that keeps {MOST}: {', '.join(parts)} ({texts})"
    fewest = next((row for row in rows[:-1] if row.advice), None)
    last = rows[-1]
    todo = f"Keep {MOST}" if fewest is None else f"{fewest.advice[:1].upper()}{fewest.advice[1:]}"
    full = f"that stream against all keys: {last.number.value:+.3f} ({last.word})" if last.number else ""
    return f"{said}. {todo}; {full}."


SECTION = CheckSection("stream", "Long text", "full", applies, 14.0, run_section, every=False)
