"""Policies that look at keys and values, not at queries."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sinkscope.attention.scores import wide
from sinkscope.caches.call import EvictionCall
from sinkscope.caches.notes import KeyLengths, Note
from sinkscope.caches.policies.policy import Policy, counted


@dataclass(frozen=True)
class KeyNorm(Policy):
    """Keys of small norm receive much attention: score = −‖k‖₂. The first `skipped_layers` layers keep everything.

    Source: Devoto et al. 2024, who skip two layers; the default here is none.
    """

    skipped_layers: int = 0
    together = True

    def __post_init__(self) -> None:
        counted("KeyNorm", "skipped_layers", self.skipped_layers)

    @property
    def needs(self) -> tuple[Note, ...]:
        return (KeyLengths(),)

    @property
    def skipped(self) -> int:
        return self.skipped_layers

    def score(self, call: EvictionCall) -> Float[Tensor, "batch kv_heads key"]:
        return -call.notes[KeyLengths()]


@dataclass(frozen=True)
class KeyDiff(Policy):
    """Keys unlike the others: score = −cos(k, mean of k/‖k‖ over all stored keys). Source: Park et al. 2025."""

    together = True

    @property
    def needs(self) -> tuple[Note, ...]:
        return (KeyLengths(),)

    def score(self, call: EvictionCall) -> Float[Tensor, "batch kv_heads key"]:
        length = call.notes[KeyLengths()].clamp(min=1e-12)
        share, scores = (call.real / length)[:, :, None], torch.empty_like(length)
        at_once = len(length) if call.key.dtype == length.dtype else 1  # avoids an fp32 copy of the keys of all layers
        for rows in torch.arange(len(length)).split(at_once):
            rows = slice(int(rows[0]), int(rows[-1]) + 1)
            key = wide(call.key[rows])
            # Row times matrix: matrix times column takes ten times as long on a CPU.
            anchor = share[rows] @ key  # Σ k/‖k‖; only its direction matters
            norm = torch.linalg.vector_norm(anchor, dim=-1).clamp(min=1e-8)
            torch.div(-(anchor @ key.mT)[:, :, 0], length[rows] * norm, out=scores[rows])
        return scores


@dataclass(frozen=True)
class LagKV(Policy):
    """Keys and values that vary across channels, relative to the range of the part that follows.

    After the first `sinks` tokens, stored keys are divided into parts of `lag`, in the order of their places. For part
    p: s = softmax_part(std_channel((x − min_{p+1} x) / (max_{p+1} x − min_{p+1} x))), for keys and for values; the
    score is the rank of their mean within the part, divided by `lag`. Sinks, the last part and the rest after it have
    score 1; a text of fewer than two parts is scored by place. Source: Liang et al. 2025.
    """

    sinks: int = 4
    lag: int = 128
    together = True

    def __post_init__(self) -> None:
        counted("LagKV", "sinks", self.sinks)
        counted("LagKV", "lag", self.lag, least=2)

    def score(self, call: EvictionCall) -> Float[Tensor, "batch kv_heads key"]:
        """Score heads with equally many keys at once.

        If only the lowest score matters, only the first part is scored: its lowest score is 0, as in every other part,
        and belongs to an older key.
        """
        if call.lowest and call.places.shape[2] >= self.sinks + 2 * self.lag:
            return self._of_first(call)
        count = call.real.sum(-1)
        # Padding and empty slots come first, so a head's keys are the last `count` of this order.
        order = call.places.masked_fill(~call.real, -1).argsort(-1)
        scores = torch.zeros(order.shape, device=order.device)
        for size in count[count > 0].unique().tolist():
            rows = (count == size).nonzero(as_tuple=True)
            at = order[rows][:, order.shape[2] - size :]
            heads = rows[0] * count.shape[1] + rows[1]
            scores[rows] = scores[rows].scatter(1, at, self._of_rows(*_rows_of(call, heads, at)))
        return scores

    def _of_first(self, call: EvictionCall) -> Float[Tensor, "batch kv_heads key"]:
        """Scores of the first part, relative to the next one; 1 elsewhere."""
        at = call.places.flatten(0, 1).topk(self.sinks + 2 * self.lag, largest=False).indices[:, self.sinks :]
        key, value = _rows_of(call, torch.arange(len(at), device=at.device), at)
        both = sum(_spread(x.unflatten(1, (2, self.lag))) for x in (key, value))[:, 0]  # type: ignore[index]
        score = torch.ones(len(at), call.places.shape[2], device=at.device)
        score.scatter_(1, at[:, : self.lag], both.argsort(-1).argsort(-1) / self.lag)
        return score.view(call.places.shape)

    def _of_rows(self, key: Float[Tensor, "n key dim"], value: Float[Tensor, "n key value_dim"]) -> Tensor:
        """For rows of keys in the order of their places, (n, key)."""
        rest = key.shape[1] - self.sinks
        parts = max(0, rest) // self.lag
        score = torch.ones(key.shape[:2], device=key.device)
        if parts < 2:
            if rest > 0:
                score[:, self.sinks :] = torch.arange(rest, device=key.device) / rest
            return score
        cut = slice(self.sinks, self.sinks + parts * self.lag)
        both = torch.stack([_spread(x[:, cut].unflatten(1, (parts, self.lag))) for x in (key, value)]).sum(0)
        score[:, self.sinks : cut.stop - self.lag] = (both.argsort(-1).argsort(-1) / self.lag).flatten(1)
        return score


def _rows_of(call: EvictionCall, heads: Tensor, at: Int[Tensor, "n slots"]) -> tuple[Tensor, Tensor]:
    """Keys and values in these slots of some heads, which are counted across the batch."""
    # index_select copies whole rows; a gather, which works by channel, takes six times as long.
    flat = (heads[:, None] * call.places.shape[2] + at).flatten()
    key, value = (wide(x.flatten(0, 2).index_select(0, flat)).view(*at.shape, -1) for x in (call.key, call.value))
    return key, value


def _spread(x: Float[Tensor, "n part lag dim"]) -> Float[Tensor, "n part_but_last lag"]:
    low, high = x[:, 1:].amin(2, keepdim=True), x[:, 1:].amax(2, keepdim=True)
    # A channel that is constant in a part says nothing about the previous one; 0/0 would make the token NaN.
    factor = torch.where(high > low, 1 / (high - low), 0.0)
    share = torch.addcmul(-low * factor, x[:, :-1], factor)
    # E[x²] − E[x]², which rounding can make negative; below it becomes unbiased, as in torch.std.
    variance = (share.square().mean(-1) - share.mean(-1).square()).clamp(min=0)
    return (variance * (x.shape[-1] / (x.shape[-1] - 1))).sqrt().softmax(-1)
