"""Expected attention from future queries."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.attention.scores import wide
from sinkscope.caches.call import EvictionCall
from sinkscope.caches.notes import Heads, Note, RowNote
from sinkscope.caches.policies.policy import Policy, counted
from sinkscope.caches.rotation import Rotation


@dataclass(frozen=True)
class QueryMoments(RowNote):
    """Moments of real queries after the first `sinks`, rotated back to position 0: (batch, heads, 1+d, 1+d), fp32.

    The count n at [0, 0], the mean μ at [0, 1:], Σ (q − μ)(q − μ)ᵀ at [1:, 1:]. Sums are computed in fp64; fp32 is
    enough to store them because they are centered.
    """

    sinks: int
    one_pass = True

    def bytes_held(self, heads: Heads, tokens: int) -> int:
        return heads.query * (1 + heads.dim) ** 2 * 4

    def after(self, call: EvictionCall, before: Tensor | None) -> Tensor:
        columns = torch.arange(call.total - call.queries, call.total, device=call.query.device)
        positions = columns[None] - (0 if call.pads is None else call.pads[:, None].to(columns.device))
        query = call.query.double()
        if call.rotation is not None:
            query = call.rotation.turn(query, -positions[:, None].clamp(min=0))
        counts = (positions >= self.sinks)[:, None, :, None]
        # Sinks and padding alone give n = 0: the share below is 0, and the moments stay as they were.
        number = counts.sum(2)[..., None].double()
        if call.queries == 1:  # it is its own mean
            mean, spread = query, query.new_zeros(1)
        else:
            mean = (query * counts).sum(2, keepdim=True) / number.clamp(min=1)
            apart = (query - mean) * counts
            spread = apart.mT @ apart
        if before is not None:  # the moments of both parts, joined pairwise (Chan et al. 1983)
            old_number, old_mean = before[:, :, :1, :1].double(), before[:, :, :1, 1:].double()
            share = number / (old_number + number).clamp(min=1)
            between = mean - old_mean
            spread = torch.addcmul(before[:, :, 1:, 1:] + spread, between.mT * (old_number * share), between)
            mean, number = old_mean + between * share, old_number + number
        size = 1 + query.shape[3]
        moments = torch.zeros(*query.shape[:2], size, size, device=query.device)
        moments[:, :, :1, :1], moments[:, :, :1, 1:], moments[:, :, 1:, 1:] = number, mean * (number > 0), spread
        return moments


@dataclass(frozen=True)
class ExpectedAttention(Policy):
    """The attention that keys will receive if queries keep their distribution: normal, at the next `future` positions.

    With μ, Σ the mean and covariance of queries before rotation and R the mean rotation of the next positions: score =
    softmax_k(k·Rμ·s + kᵀRΣRᵀk·s²/2), averaged over a head group, times ‖v_k‖₂. The first `sinks` tokens stay, and their
    queries do not count. Source: Devoto et al. 2025. Their code rebuilds queries from hidden states, per family; here
    the layer's own queries are rotated back by its measured rotation, which works for any family. A softcap and a
    learned sink are ignored.

    R changes with every token, so each decoded token multiplies every key by a new d × d matrix. On a CPU these
    products alone take about half as long as a step of SmolLM2-135M (`benchmarks.eviction`).
    """

    sinks: int = 4
    future: int = 512
    together = True

    def __post_init__(self) -> None:
        counted("ExpectedAttention", "sinks", self.sinks)
        counted("ExpectedAttention", "future", self.future, least=1)

    @property
    def needs(self) -> tuple[Note, ...]:
        return (QueryMoments(self.sinks),)

    @property
    def reads_rotation(self) -> bool:
        return True

    @property
    def least(self) -> int:
        return self.sinks + 1

    def score(self, call: EvictionCall) -> Float[Tensor, "batch kv_heads key"]:
        moments = wide(call.notes[QueryMoments(self.sinks)])
        mean, count = moments[..., 0, 1:], moments[..., :1, :1].clamp(min=1)
        covariance = moments[..., 1:, 1:] / count
        if call.rotation is not None:
            tokens = call.tokens if call.pads is not None else call.tokens[:1]
            ahead = _mean_turn(call.rotation, mean.shape[-1], self.future, mean.device).expand(len(tokens), -1, -1)
            # R(tokens + i) = R(i) R(tokens): the mean over i is cached, and rotated by the current length.
            forward = call.rotation.turn(ahead, tokens[:, None])[:, None].to(mean.dtype)
            mean = (mean[:, :, None] @ forward)[:, :, 0]
            # forwardᵀ Σ forward, because Σ is symmetric.
            covariance = (covariance @ forward).mT @ forward
        group, (heads, dim) = call.group, call.key.shape[1::2]
        # k·μ s + kᵀΣk s²/2 = k·(Σk s²/2 + μ s): one product of matrices, whose columns are those of a group's heads
        linear = (mean * call.scaling).reshape(-1, heads, 1, group * dim)
        quadratic = (covariance * (call.scaling**2 / 2)).reshape(-1, heads, group, dim, dim).transpose(2, 3).flatten(3)
        others = call.real & (call.positions >= self.sinks)
        score = torch.empty(others.shape, dtype=mean.dtype, device=mean.device)
        for row in range(len(others)):  # a sample at a time, so that intermediate results stay in the processor's cache
            key, value = wide(call.key[row]), wide(call.value[row])
            turned = torch.baddbmm(linear[row], key, quadratic[row]).unflatten(2, (group, dim))
            likely = turned.mul_(key[:, :, None]).sum(-1).masked_fill_(~others[row, :, :, None], -torch.inf)
            torch.mul(likely.softmax(1).mean(2), torch.linalg.vector_norm(value, dim=-1), out=score[row])
        return score.masked_fill_(~others, torch.inf)


@lru_cache(maxsize=64)
def _mean_turn(rotation: Rotation, dim: int, future: int, device: torch.device) -> Float[Tensor, "1 dim dim"]:
    """The matrix that, multiplied from the right, rotates rows forward by 0 … future − 1 positions, on average."""
    with torch.inference_mode(False):
        identity = torch.eye(dim, dtype=torch.float64, device=device)
        places = torch.arange(future, dtype=torch.float64, device=device)
        return torch.stack([rotation.turn(identity, place.expand(dim)) for place in places]).mean(0)[None]
