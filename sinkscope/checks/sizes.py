"""Bytes of caches as rows show them: of a model in 16 bits, whatever its dtype here."""

from __future__ import annotations

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from sinkscope.caches.sizes import held_bytes
from sinkscope.checks.subject import CheckedModel, TextSet
from sinkscope.hooks import device_of, evaluating, with_cache
from sinkscope.trials import Arm, Trial, feeding

SIXTEEN = 2  # bytes of a number in 16 bits


def cache_bytes(subject: CheckedModel, texts: TextSet, arm: Arm) -> tuple[float, float]:
    """Bytes of an arm's cache after the first half of a text, and their share of a 16-bit cache of the same tokens.

    All texts have one length, so the first stands for all.
    """
    ids = texts.ids[:1, : texts.ids.shape[1] // 2]
    with feeding(subject.model, arm, texts.ids[:1]) as feed:
        feed.read(ids)
        size = held_bytes(feed.cache, SIXTEEN)
    return size, size / _plain(subject, ids)[0]


def stream_bytes(subject: CheckedModel, ids: torch.Tensor, cells: int) -> tuple[float, float]:
    """Bytes of a stream of so many tokens after a text, and their share of a 16-bit cache of the whole text."""
    size, full = _plain(subject, ids[:1])
    streamed = size - full * (1 - cells / ids.shape[1])
    return streamed, streamed / size


def evicted_bytes(trial: Trial, arm: str) -> tuple[float, float]:
    """Bytes of an arm of an eviction trial after the context of a text, and their share of a 16-bit cache."""
    size, reference = (float(trial.data["bytes"].sel(arm=name)) for name in (arm, trial.arms[0]))
    wide = {"float32": 4, "float64": 8}.get(trial.record["dtype"], SIXTEEN)
    return size * SIXTEEN / wide, size / reference


@torch.no_grad()
def _plain(subject: CheckedModel, ids: torch.Tensor) -> tuple[int, int]:
    """Bytes of a 16-bit cache of a text, and how many of them are in layers that keep all tokens."""
    with evaluating(subject.model):
        plain = DynamicCache(config=subject.model.config)
        subject.model(input_ids=ids.to(device_of(subject.model)), use_cache=True, **with_cache(subject.model, plain))
    full = sum(held_bytes(layer, SIXTEEN) for layer in plain.layers if type(layer) is DynamicLayer)
    return held_bytes(plain, SIXTEEN), full
