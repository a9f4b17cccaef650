"""Softmax operations on `scaled_dot_product_attention`, only where that is exact.

A slot is one more key. It stands first, and a zero query stands before the queries, so that the kernel's top-left
causal triangle still fits; the extra row is dropped. A logit b rides in one more channel of the head:
scaling · [q, b]·[k*, 1/scaling] = scaling · q·k* + b. On the CPU without a written mask it needs none (`flash.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from sinkscope.attention.combination import Combination
from sinkscope.attention.normalizers import ScaledSoftmax, Softmax
from sinkscope.attention.paths import chunked, flash
from sinkscope.attention.scores import DotProduct, MapScores, per_query_head, wide, widened
from sinkscope.attention.slots import SlotTerms
from sinkscope.attention.visibility import Visibility


def obstacle(spec: Combination, *, biased: bool = False) -> str | None:
    """Why SDPA is not exact for this operation; None where it is. `biased`: a position bias is added to the scores."""
    if not isinstance(spec.normalizer, Softmax | ScaledSoftmax):
        return f"'{spec.normalizer.kind}' weights are not a softmax, which is all that SDPA kernels compute"
    if not isinstance(spec.similarity, DotProduct):
        return f"'{spec.similarity.kind}' maps queries and keys, which SDPA kernels get as they are"
    if spec.decay is not None:
        return "a forgetting gate adds a bias to every score, which would be a T × T tensor"
    if biased:
        return "a position bias is added to every score, which would be a T × T tensor"
    return None


def attention(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key value_dim"],
    slots: Sequence[SlotTerms],
    visibility: Visibility,
    scaling: float,
) -> Float[Tensor, "batch heads query value_dim"]:
    """Softmax attention over slots and tokens; equals the reference up to rounding. O(T) memory under every mask.

    Args:
        query, key, value: q, k and v.
        slots: Keys, logits and values of the slots, which are seen by every query that sees a token.
        visibility: Which keys each query sees.
        scaling: Factor of q·k and q·k*.
    """
    width, value_dim = query.shape[-1], value.shape[-1]
    if width != value_dim:  # unequal head widths silently take the math kernel and its T × T buffer
        wider = max(width, value_dim)
        query, key, value = (F.pad(x, (0, wider - x.shape[-1])) for x in (query, key, value))
        slots = [_widened(terms, wider) for terms in slots]
        return attention(query, key, value, slots, visibility, scaling)[..., :value_dim]
    plain = visibility.is_causal_square or visibility.is_full
    if (
        query.device.type in flash.DEVICES
        and not _decodes_in_a_graph(query)
        and (not plain or (slots and adds_slots(slots, query, value, visibility)))
    ):
        return _by_flash(query, key, value, slots, visibility, scaling)
    if not slots:
        return _kernel(query, key, value, visibility, 0, scaling)
    query = _with_channels(query, slots)
    key = _with_slot_keys(key, slots, scaling)
    value = _with_slot_values(value, slots)
    # Logits made queries and keys wider, and widths must stay equal.
    value = F.pad(value, (0, query.shape[-1] - value_dim))
    causal = visibility.is_causal_square
    if causal:
        query = F.pad(query, (0, 0, len(slots), 0))
    output = _kernel(query, key, value, visibility, len(slots), scaling)
    return output[:, :, len(slots) if causal else 0 :, :value_dim]  # without the extra queries and channels


def adds_slots(slots: Sequence[SlotTerms], query: Tensor, value: Tensor, visibility: Visibility) -> bool:
    """Whether slots are added to the kernel's result instead of being keys of it; its log-sum-exp is then over tokens
    only."""
    plain = visibility.is_causal_square or visibility.is_full
    cheaper = not plain or any(terms.logit is not None for terms in slots)  # than a further channel, or a longer mask
    return bool(slots) and cheaper and query.device.type == "cpu"


def _kernel(query: Tensor, key: Tensor, value: Tensor, visibility: Visibility, slots: int, scaling: float) -> Tensor:
    grouped = query.shape[1] != key.shape[1]
    # `is_causal` aligns the triangle at the top left, so it is right for squares only: with a cache, or in
    # a chunk of a prefill, the last queries would see only the first keys. Those cases get a written mask.
    if visibility.is_causal_square:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=grouped)
    if visibility.is_full:
        return F.scaled_dot_product_attention(query, key, value, scale=scaling, enable_gqa=grouped)

    if _decodes_in_a_graph(query):
        return _masked(query, key, value, visibility.dense(), slots, scaling)

    def output_of(rows: slice) -> Tensor:
        reach = visibility.reach(rows)
        keys, values = (_with_front(x, slots, reach) for x in (key, value))
        return _masked(query[:, :, rows], keys, values, visibility.upto(reach).dense(rows), slots, scaling)

    return chunked.attention(output_of, query.shape[2])


def _decodes_in_a_graph(query: Tensor) -> bool:
    """One query in a compiled graph: blocks of keys would make the cache's length a constant of it."""
    return torch.compiler.is_compiling() and query.shape[2] == 1


def _masked(query: Tensor, key: Tensor, value: Tensor, visible: Tensor, slots: int, scaling: float) -> Tensor:
    """The kernel under a written mask of the tokens; slots stand before them."""
    blank = ~visible.any(-1, keepdim=True)  # padding: it attends anywhere, instead of 0 / 0, and is zeroed below
    mask, grouped = F.pad(visible, (slots, 0), value=True) | blank, key.shape[1] != query.shape[1]
    output = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling, enable_gqa=grouped)
    return output.masked_fill(blank, 0.0)


def _with_front(tensor: Tensor, count: int, columns: slice) -> Tensor:
    """The first `count` keys, and the columns counted from their end."""
    behind = tensor[:, :, count + columns.start : count + columns.stop]
    return torch.cat([tensor[:, :, :count], behind], 2) if count else behind


def _by_flash(
    query: Tensor, key: Tensor, value: Tensor, slots: Sequence[SlotTerms], visibility: Visibility, scaling: float
) -> Tensor:
    """On the CPU's kernel itself: blocks of queries under a mask, and slots by its log-sum-exp."""
    # For the slots' logits, which are fp32 at least; the kernel gets queries as they are.
    read = wide(query)
    if not slots:
        none = read.new_zeros(0, query.shape[1], value.shape[-1])
        return flash.attention(query, key, value, read[..., :0], none, visibility, scaling)
    logits = MapScores(read, read[:, :, :0], scaling, visibility, tuple(slots)).slot_logits(slice(0, query.shape[2]))
    zero = read.new_zeros(query.shape[1], value.shape[-1])
    values = torch.stack([zero if terms.value is None else per_query_head(terms.value, read) for terms in slots])
    return flash.attention(query, key, value, logits, values, visibility, scaling)


def _widened(terms: SlotTerms, width: int) -> SlotTerms:
    """A slot for heads of this width."""
    key, value = (None if x is None else F.pad(x, (0, width - x.shape[-1])) for x in (terms.key, terms.value))
    return SlotTerms(key, terms.logit, value)


def _with_channels(query: Tensor, slots: Sequence[SlotTerms]) -> Tensor:
    """One more channel per slot that has a logit, holding that logit."""
    channels = []
    for terms in slots:
        if terms.logit is not None:
            lowest = torch.finfo(query.dtype).min / 4  # −inf would meet the zeros of other keys and become NaN
            logit = terms.logit.to(query.dtype).clamp(min=lowest)
            logit = logit[None, :, None] if logit.ndim == 1 else logit  # (#batch, heads, #query)
            channels.append(logit.expand(query.shape[:3])[..., None])
    return torch.cat([query, *channels], -1) if channels else query


def _with_slot_keys(key: Tensor, slots: Sequence[SlotTerms], scaling: float) -> Tensor:
    batch, kv_heads, _, dim = key.shape
    # A channel for each logit, in which all other slots and the tokens are 0.
    channels = sum(terms.logit is not None for terms in slots)
    rows, channel = [], 0
    for terms in slots:
        row = key.new_zeros(kv_heads, dim) if terms.key is None else widened(terms.key.to(key.dtype), key)
        row = F.pad(row, (0, channels))
        if terms.logit is not None:
            row = row + F.one_hot(row.new_tensor(dim + channel, dtype=torch.long), dim + channels).to(row) / scaling
            channel += 1
        rows.append(row)
    # (batch, kv_heads, slots, dim + channels), in front of the tokens
    stacked = torch.stack(rows, 1)[None].expand(batch, -1, -1, -1)
    return torch.cat([stacked, F.pad(key, (0, channels))], 2)


def _with_slot_values(value: Tensor, slots: Sequence[SlotTerms]) -> Tensor:
    batch, kv_heads, _, dim = value.shape
    rows = [value.new_zeros(kv_heads, dim) if terms.value is None else terms.value.to(value.dtype) for terms in slots]
    return torch.cat([torch.stack(rows, 1)[None].expand(batch, -1, -1, -1), value], 2)
