"""Caches and a model whose every number is known beforehand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import DynamicLayer

from sinkscope.trials import Arm, Texts, cached

ANY = Texts.of_ids(torch.zeros(1, 1, dtype=torch.long))
"""Texts for arms that are the same for all."""


class KeepingLayer(DynamicLayer):
    """Drops, after each pass, all but the first `sinks` and the last `recent` keys, copied out of the old storage."""

    def __init__(self, sinks: int, recent: int) -> None:
        super().__init__()
        self.sinks, self.recent, self.seen = sinks, recent, 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        keys, values = super().update(key_states, value_states)
        self.seen += key_states.shape[2]
        self.keys, self.values = self._cut(keys), self._cut(values)
        return keys, values

    def _cut(self, states: Tensor) -> Tensor:
        length = states.shape[2]
        if length <= self.sinks + self.recent:
            return states
        return torch.cat([states[:, :, : self.sinks], states[:, :, length - self.recent :]], 2)

    def get_seq_length(self) -> int:
        return self.seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        length = (self.keys.shape[2] if self.is_initialized else 0) + query_length
        return length, self.seen + query_length - length


class KeepingCache(DynamicCache):
    def __init__(self, layers: int, sinks: int, recent: int) -> None:
        super().__init__()
        self.layers = [KeepingLayer(sinks, recent) for _ in range(layers)]


def keeping(sinks: int, recent: int, **more: Any) -> Arm:
    """`sinks+recent`: the arm that keeps so many."""
    made = lambda model: KeepingCache(model.config.num_hidden_layers, sinks, recent)  # noqa: E731
    return cached(f"{sinks}+{recent}", made, series="keeping", **more)


def twin() -> Arm:
    """The full cache, under another name."""
    return cached("twin", lambda model: DynamicCache(config=model.config))


class Lookup(nn.Module):
    """Predicts what stood behind the latest earlier occurrence of the last token, as far as the cache still holds it.

    It stores the ids themselves as keys; where the token or what followed it is gone, it predicts token 0.
    """

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.weight = nn.Parameter(torch.zeros(1))
        self.config = LlamaConfig(num_hidden_layers=1)

    def forward(self, input_ids: Tensor, past_key_values: Any, use_cache: bool) -> SimpleNamespace:
        given = input_ids[:, None, :, None].float()
        stored = past_key_values.update(given, given, 0)[0][:, 0, :, 0].long()
        logits = torch.zeros(len(input_ids), 1, self.vocabulary)
        for row, held in enumerate(stored.tolist()):
            earlier = [place for place in range(len(held) - 1) if held[place] == held[-1]]
            logits[row, 0, held[earlier[-1] + 1] if earlier else 0] = 1.0
        return SimpleNamespace(logits=logits)


def llama(layers: int = 2, vocab_size: int = 40, **fields: Any) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=vocab_size, num_hidden_layers=layers, initializer_range=0.3, **sizes, **fields)
    return LlamaForCausalLM(config).eval()


def texts(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(3, 40, (rows, length), generator=torch.Generator().manual_seed(seed))
