"""Tokens one after the other, as a model's generation config says, and their text as soon as it is whole."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, GenerationConfig

HELD = 8  # tokens that may wait for the rest of a character
REMEMBERED = 4096  # last tokens that a penalty on repetition looks at
TEMPERATURE = 0.8  # for models whose generation config does not sample


def settings(model: Any, temperature: float | None, top_p: float | None, top_k: int | None) -> GenerationConfig:
    """The model's own generation config, changed by what was asked for; temperature 0 takes the most likely token."""
    config = copy.deepcopy(getattr(model, "generation_config", None) or GenerationConfig())
    if temperature is None:
        temperature = (config.temperature or 1.0) if config.do_sample else TEMPERATURE
    config.do_sample = temperature > 0
    config.temperature = temperature or None
    if top_p is not None:
        config.top_p = top_p
    if top_k is not None:
        config.top_k = top_k or None
    if not config.do_sample:
        config.top_p = config.top_k = None
    return config


def ends(model: Any, tokenizer: Any) -> set[int]:
    """Tokens that end a text: of the generation config, of the configuration and of the tokenizer."""
    lists = [getattr(getattr(model, name, None), "eos_token_id", None) for name in ("generation_config", "config")]
    return {end for each in (*lists, tokenizer.eos_token_id) for end in _listed(each)}


def turn_end(tokenizer: Any) -> set[int]:
    """The special token with which the chat template ends an answer; empty where it has none."""
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    asked = tokenizer.apply_chat_template(turns[:1], add_generation_prompt=True)["input_ids"]
    answered = tokenizer.apply_chat_template(turns)["input_ids"]
    return set([token for token in answered[len(asked) :] if token in tokenizer.all_special_ids][:1])


def written(
    model: nn.Module, ids: Tensor, cache: Cache, config: GenerationConfig, draw: torch.Generator
) -> Iterator[int]:
    """What the model writes after `ids`, (1, position), of which the cache lacks the last token; without an end.

    Logits pass through the processors that transformers makes of `config`, then the next token is drawn, or the most
    likely one is taken where `config` does not sample.
    """
    processors = model._get_logits_processor(config, ids.shape[1], ids, device=ids.device)  # type: ignore[operator]
    token, seen = ids[:, -1:], ids[:, -REMEMBERED:]
    while True:
        with torch.inference_mode():
            logits = model(token, past_key_values=cache, use_cache=True).logits[:, -1].float()
        logits = processors(seen, logits)
        if config.do_sample:
            token = torch.multinomial(logits.softmax(-1), 1, generator=draw)
        else:
            token = logits.argmax(-1, keepdim=True)
        seen = torch.cat([seen, token], 1)[:, -REMEMBERED:]
        yield int(token)


class Decoded:
    """Text of tokens that come one by one. A token's text may depend on the one before, and be part of a character."""

    def __init__(self, tokenizer: Any, before: list[int]) -> None:
        self._tokenizer = tokenizer
        self._ids, self._read = before[-HELD:], len(before[-HELD:])

    def add(self, token: int) -> str:
        """The text that is whole now, without special tokens."""
        self._ids.append(token)
        before, now = (self._text(ids) for ids in (self._ids[: self._read], self._ids))
        if now.endswith("�") and len(self._ids) - self._read < HELD:
            return ""
        self._ids, self._read = self._ids[self._read :], len(self._ids) - self._read
        return str(now[len(before) :])

    def _text(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))


def _listed(value: int | list[int] | None) -> list[int]:
    return [] if value is None else value if isinstance(value, list) else [value]
