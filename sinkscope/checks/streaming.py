"""Can it stream, and with how many first tokens: caches of 128 keys that keep 0, 1, 2 or 4 of them, on long texts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
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
from sinkscope.checks.sizes import stream_bytes
from sinkscope.checks.subject import CheckedModel, TextSet
from sinkscope.errors import InputError
from sinkscope.trials import Arm, OnePass, Texts, Trial, run

SINKS = (0, 1, 2, 4)
MOST = SINKS[-1]
KEYS = 128  # of each cache, kept first tokens included


def obstacle(subject: CheckedModel) -> str:
    """Empty for a causal decoder with a tokenizer whose positions a stream can rotate."""
    if reason := subject.text_obstacle() or subject.decoder_obstacle():
        return reason
    try:
        StreamingCache(subject.model, 1, KEYS - 1)
    except InputError as error:
        return str(error)
    return ""


def run_section(subject: CheckedModel, texts: TextSet, progress: Progress | None) -> Answered:
    """Streams with 0, 1 and 2 first tokens compared with the one with 4, and that one with a cache of all keys."""
    assert subject.long_texts is not None
    long = subject.long_texts(texts)
    length = long.ids.shape[1]
    keys = min(KEYS, length // 4)
    arms = [_arm(sinks, keys, _arm_name(MOST) if sinks != MOST else "full") for sinks in SINKS]
    trial = run(
        subject.model,
        long.ids,
        arms,
        reading=OnePass(from_token=keys),
        controls=0,
        # About as many tokens per pass as with texts of the usual length.
        batch_size=max(1, subject.batch_size * 128 // length),
        seed=subject.seed,
        about={"kind": "check-streaming", "keys": keys},
        progress=progress,
    )
    size = stream_bytes(subject, long.ids, keys)
    rows = [_row(trial, sinks, keys, size) for sinks in SINKS]
    if rows[-1].word not in ADVISED:  # the others are compared with that stream
        rows = [replace(row, advice="") for row in rows]
    facts = {"keys": keys, "texts": long.description, "sha256": long.sha256}
    fewest_first = tuple(row.key for row in rows)
    return Answered(_answer(rows, keys, long.description), tuple(rows), facts, "", fewest_first, _otherwise(rows, keys))


def _arm_name(sinks: int) -> str:
    return f"{sinks} first tokens kept" if sinks != 1 else "1 first token kept"


def _arm(sinks: int, keys: int, against: str) -> Arm:
    """A stream that reads texts in chunks, with the same predictions as token by token."""

    @contextmanager
    def opened(model: nn.Module, texts: Texts) -> Iterator[Cache | None]:
        cache = StreamingCache(model, sinks, keys - sinks)
        # `cache.read` calls the model itself: while it reads, calls go to the original forward.
        original, reading = model.forward, False

        @wraps(original)
        def forward(*args: Any, **inputs: Any) -> Any:
            nonlocal reading
            if reading:
                return original(*args, **inputs)
            reading = True
            try:
                parts = [out.logits for out in cache.read(model, inputs["input_ids"], KEYS)]
            finally:
                reading = False
            return CausalLMOutput(logits=torch.cat(parts, 1))

        with patch.object(model, "forward", forward):
            yield None

    return Arm(_arm_name(sinks), opened, against=against, facts={"sinks": sinks, "keys": keys})


def _row(trial: Trial, sinks: int, keys: int, size: tuple[float, float]) -> Row:
    arm = _arm_name(sinks)
    grade, cost = trial.grade(arm), trial.cost(arm, "nats")
    against = str(trial.data["against"].sel(arm=arm).values)
    values = trial.values(arm, "nats") - trial.values(against, "nats")
    compared = "all keys" if sinks == MOST else _arm_name(MOST)
    advice = f"keep {sinks}" if grade.word in ADVISED else ""
    return Row(
        f"sinks-{sinks}",
        f"{sinks} kept of {keys} keys",
        cost,
        f"nats lost a token against {compared}",
        trial.texts,
        grade.word,
        grade.why,
        advice,
        *size,
        tuple(values.tolist()),
    )


def _otherwise(rows: list[Row], keys: int) -> str:
    """What to do where no stream is safe on all texts."""
    if rows[-1].word == "breaks":
        return f"Do not stream with {keys} keys."
    fewest = next((sinks for sinks, row in zip(SINKS, rows, strict=True) if row.word in ADVISED), MOST)
    kept = f"; if it has to be, keep {fewest} first token{'s' if fewest > 1 else ''}" if fewest else ""
    return f"A stream of {keys} keys cannot be advised{kept}."


def _answer(rows: list[Row], keys: int, texts: str) -> str:
    """What fewer first tokens than four cost, and what four cost. `texts`: the description of the long texts."""
    costs = [f"{row.key.removeprefix('sinks-')} {row.number.value:+.3f}" for row in rows[:-1] if row.number]
    last = rows[-1]
    most = f"; that stream against all keys: {last.number.value:+.3f} ({last.word})" if last.number else ""
    fewer = f"of {keys} keys, keeping {', '.join(costs)} first tokens, in nats a token against keeping {MOST}"
    return f"{fewer[:1].upper()}{fewer[1:]}. On {texts}{most}."


SECTION = CheckSection(
    "stream", "Long text", "full", obstacle, tuple(f"sinks-{sinks}" for sinks in SINKS), 7.0, run_section
)
