"""Tokens one after the other, and their text as soon as it is whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache

HELD = 8  # tokens that may wait for the rest of a character


def written(model: nn.Module, ids: Tensor, cache: Cache, temperature: float, seed: int) -> Iterator[int]:
    """What the model writes after `ids`, (1, position), of which the cache lacks the last token; without an end.

    Drawn from softmax(logits / temperature); the most likely token at temperature 0.
    """
    draw = torch.Generator(device=ids.device).manual_seed(seed)
    token = ids[:, -1:]
    while True:
        with torch.inference_mode():
            logits = model(token, past_key_values=cache, use_cache=True).logits[:, -1].float()
        if temperature:
            token = torch.multinomial((logits / temperature).softmax(-1), 1, generator=draw)
        else:
            token = logits.argmax(-1, keepdim=True)
        yield int(token)


class Decoded:
    """Text of tokens that come one by one. A token's text may depend on the one before, and be part of a character."""

    def __init__(self, tokenizer: Any, before: list[int]) -> None:
        self._tokenizer = tokenizer
        self._ids, self._read = before[-HELD:], len(before[-HELD:])

    def add(self, token: int) -> str:
        """The text that is whole now."""
        self._ids.append(token)
        before, now = (self._tokenizer.decode(ids) for ids in (self._ids[: self._read], self._ids))
        if now.endswith("�") and len(self._ids) - self._read < HELD:
            return ""
        self._ids, self._read = self._ids[self._read :], len(self._ids) - self._read
        return str(now[len(before) :])
