"""Attention with its maps written out, and rules on them as papers state them: what closed forms must equal.

`maps_changed(model, rule)` computes all attention of a model here; a rule gets the weights of one layer, (batch, heads,
query, key), and what its learned sink takes, (batch, heads, query, 1), and returns other weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask

Rule = Callable[[Tensor, Tensor], Tensor]
NAME = "written_out_in_a_test"


def weights_of(
    query: Tensor, key: Tensor, mask: Tensor | None, scaling: float, softcap: float | None, sink: Tensor | None
) -> Tensor:
    scores = query @ key.repeat_interleave(query.shape[1] // key.shape[1], 1).mT * scaling
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = scores + mask[..., : key.shape[2]]
    if sink is None:
        return scores.softmax(-1)
    column = sink.reshape(1, -1, 1, 1).expand(len(scores), -1, scores.shape[2], 1)
    return torch.cat([scores, column], -1).softmax(-1)


@contextmanager
def maps_changed(model: PreTrainedModel, rule: Rule) -> Iterator[None]:
    def attention(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **given: Any
    ) -> tuple[Tensor, Tensor]:
        scaling = given.get("scaling") or query.shape[-1] ** -0.5
        weights = weights_of(query, key, attention_mask, scaling, given.get("softcap"), given.get("s_aux"))
        keys = key.shape[2]
        weights = rule(weights[..., :keys], weights[..., keys:].sum(-1, keepdim=True))
        output = weights @ value.repeat_interleave(query.shape[1] // value.shape[1], 1)
        return output.transpose(1, 2).contiguous(), weights

    before = model.config._attn_implementation
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, eager_mask)
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(before)
        del AttentionInterface._global_mapping[NAME]
        del AttentionMaskInterface._global_mapping[NAME]


def reweighed(weights: Tensor, slot: Tensor, columns: Tensor, gamma: float) -> Tensor:
    """γ on columns (batch, key), rows renormalized with everything else in the softmax."""
    factor = torch.where(columns[:, None, None], gamma, 1.0)
    scaled = weights * factor
    total = scaled.sum(-1, keepdim=True) + slot
    return torch.where(total > 1e-12, scaled / total.clamp(min=1e-30), weights)


def act(weights: Tensor, threshold: float, beta: float, guarded: bool, pads: Tensor) -> Tensor:
    """The pseudo-code of the paper's appendix, one head of one row at a time; `pads`: left padding of each row."""
    result = weights.clone()
    for row, heads in enumerate(weights):
        start = int(pads[row])
        for head, whole in enumerate(heads):
            a = whole[start:, start:]
            n = len(a)
            queries = torch.arange(n, 0, -1)
            sinks = torch.where(a.sum(0) / queries > threshold)[0]
            sinks = sinks[(2 * queries[sinks] >= n) & (sinks > 0)] if guarded else sinks[1:]
            c = a.clone()
            c[:, sinks] = 0
            left = c.sum(1, keepdim=True)
            freed = (1 - beta) * a[:, sinks].sum(1, keepdim=True)
            new = a.clone()
            new[:, sinks] *= beta
            new = new + freed * c / left.clamp(min=1e-30)
            result[row, head, start:, start:] = torch.where(left > 0, new, a)
    return result
