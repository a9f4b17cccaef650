"""Eviction written down naively: every key is kept in memory, sets are sets, and weights come from loops over keys.

Nothing of `sinkscope` is in it. The model runs with an attention function of ours over all keys that there ever were,
of which each head sees those in its set; what a policy scores is read from that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, DynamicCache, PreTrainedModel

NAME = "kept_by_loops"
Head = tuple[int, int]  # row, key-value head


@dataclass
class History:
    """What happened in one layer. `given[row, head][t][k]`: the weight that query t gave to key k at its time."""

    kept: dict[Head, set[int]] = field(default_factory=dict)
    given: dict[Head, dict[int, dict[int, float]]] = field(default_factory=dict)
    query: list[Tensor] = field(default_factory=list)  # (batch, heads, dim) of each column
    key: Tensor = field(default_factory=lambda: torch.empty(0))
    value: Tensor = field(default_factory=lambda: torch.empty(0))
    scaling: float = 1.0
    pads: list[int] = field(default_factory=list)
    notes: dict[Any, Any] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return self.key.shape[2]

    @property
    def group(self) -> int:
        return self.query[0].shape[1] // self.key.shape[1]

    def weights(self, row: int, head: int, t: int, keys: set[int]) -> dict[int, float]:
        """Softmax of query t of a query head over those of `keys` that are not behind it."""
        seen = [k for k in sorted(keys) if k <= t]
        query, key = self.query[t][row, head].double(), self.key[row, head // self.group].double()
        scores = (key[seen] @ query * self.scaling).tolist()
        powers = [math.exp(score - max(scores)) for score in scores]
        return {k: power / sum(powers) for k, power in zip(seen, powers, strict=True)}

    def of_group(self, kv_head: int) -> range:
        return range(kv_head * self.group, (kv_head + 1) * self.group)


Score = Callable[[History, int, int, int], float]  # history, row, key-value head, key
Scores = dict[Head, dict[int, float]]  # of the kept keys
Spread = Callable[[int, Scores], dict[Head, int]]  # layer, scores: how many keys each head may keep


histories: dict[int, History] = {}


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **kwargs: Any
) -> tuple[Tensor, None]:
    of = histories[module.layer_idx]
    of.key, of.value, of.scaling = key, value, kwargs["scaling"]
    before = key.shape[2] - query.shape[2]
    of.query += [query[:, :, i] for i in range(query.shape[2])]
    output = torch.zeros(*query.shape[:3], value.shape[-1])
    for row in range(len(query)):
        new = {t for t in range(before, key.shape[2]) if t >= of.pads[row]}
        for kv_head in range(key.shape[1]):
            of.kept.setdefault((row, kv_head), set()).update(new)
        for head in range(query.shape[1]):
            for t in sorted(new):
                found = of.weights(row, head, t, of.kept[row, head // of.group])
                of.given.setdefault((row, head), {})[t] = found
                shares = value.new_tensor(list(found.values()))
                output[row, head, t - before] = shares @ value[row, head // of.group, list(found)]
    return output.transpose(1, 2), None


@contextmanager
def loops(model: PreTrainedModel, pads: list[int]) -> Iterator[list[History]]:
    """The model with the attention function above."""
    layers = model.config.num_hidden_layers
    histories.clear()
    histories.update({index: History(pads=pads) for index in range(layers)})
    own = model.config._attn_implementation
    AttentionInterface.register(NAME, _attend)
    model.config._attn_implementation = NAME
    try:
        yield [histories[index] for index in range(layers)]
    finally:
        model.config._attn_implementation = own


def run(
    model: PreTrainedModel,
    ids: Tensor,
    pads: list[int],
    prompt: int,
    score: Score,
    budget: int | Spread,
    always: bool,
    merges: str | None = None,
) -> tuple[Tensor, list[list[dict[Head, set[int]]]]]:
    """Logits of the last prompt token and of each token behind it, and every layer's kept sets after each pass."""
    logits, sets = [], []
    with loops(model, pads) as histories, torch.no_grad():
        cache = DynamicCache()
        for start, stop in [(0, prompt), *((t, t + 1) for t in range(prompt, ids.shape[1]))]:
            columns = torch.arange(start, stop)[None] - torch.tensor(pads)[:, None]
            out = model(ids[:, start:stop], position_ids=columns.clamp(min=0), past_key_values=cache)
            logits.append(out.logits[:, -1])
            if always or start == 0:
                for layer, history in enumerate(histories):
                    _evict(history, score, budget, merges, layer)
            sets.append([{head: set(kept) for head, kept in history.kept.items()} for history in histories])
    return torch.stack(logits, 1), sets


def _evict(history: History, score: Score, budget: int | Spread, merges: str | None, layer: int) -> None:
    chosen = {}
    scores = {
        (row, head): {k: score(history, row, head, k) for k in kept} for (row, head), kept in history.kept.items()
    }
    limits = dict.fromkeys(scores, budget) if isinstance(budget, int) else budget(layer, scores)
    for (row, head), kept in history.kept.items():
        found = scores[row, head]
        ranked = sorted((k for k in kept if found[k] > -math.inf), key=lambda k: (found[k], k), reverse=True)
        chosen[row, head] = set(ranked[: limits[row, head]])
        if merges is not None:
            _merge(history, row, head, chosen[row, head], kept, merges)
    history.kept = chosen


def _merge(history: History, row: int, head: int, stay: set[int], kept: set[int], how: str) -> None:
    key, value = history.key[row, head], history.value[row, head]
    before = {k: (key[k].clone(), value[k].clone()) for k in kept}
    brought: dict[int, list[tuple[Tensor, Tensor]]] = {k: [before[k]] for k in stay}
    for e in sorted(kept - stay):
        near = {k: float(torch.cosine_similarity(before[e][0], before[k][0], dim=0)) for k in stay}
        to = max(near, key=lambda k: near[k])
        if how == "averaged":
            brought[to].append(before[e])
        elif how == "weighted":
            brought[to].append((before[e][0] * near[to], before[e][1] * near[to]))
        else:
            brought[to].append(tuple((x + y) / 2 for x, y in zip(before[e], before[to], strict=True)))  # type: ignore[arg-type]
    for k, pairs in brought.items():
        key[k] = sum(pair[0] for pair in pairs) / len(pairs)
        value[k] = sum(pair[1] for pair in pairs) / len(pairs)
