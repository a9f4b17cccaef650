"""Positions as biases on the scores: T5's learned buckets, the paper's fixed ones, and ALiBi."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from sinkscope.attention import Learned
from sinkscope.model.positions.scheme import DistanceBias, Scheme, TokenPositions

BUCKETS, REACH = 32, 128


class RelativeT5(Scheme, Learned):
    """b[h, q, k] = table[bucket(q − k), h]: learned per head, one table for all layers, drawn N(0, 1 / width).

    Source: Raffel et al. 2020. Buckets are one-sided in a causal model and two-sided in a bidirectional one. T5 does
    not scale its scores; here the bias is added to scaled ones, as in the rest of the lab model.
    """

    def __init__(self, heads: int, width: int, is_causal: bool) -> None:
        super().__init__()
        self.width, self.is_causal = width, is_causal
        self.table = nn.Parameter(torch.empty(BUCKETS, heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=self.width**-0.5)

    def bias(self, positions: TokenPositions) -> DistanceBias:
        return _bound(positions, partial(_looked_up, self.table, not self.is_causal))


class RelativePaper(Scheme):
    """b[q, k] = +bucket(q − k), not learned, the same for all heads and layers: it grows toward the far past.

    Source: sail-sg/Attention-Sink, lit_gpt/model_relpos.py, "relative", which the paper calls T5's. In a
    bidirectional model, which that code does not have, it is bucket(|q − k|).
    """

    def __init__(self, is_causal: bool) -> None:
        super().__init__()
        self.is_causal = is_causal

    def bias(self, positions: TokenPositions) -> DistanceBias:
        return _bound(positions, partial(_growing, not self.is_causal))


class Alibi(Scheme):
    """b[h, q, k] = −m_h · |q − k| with fixed slopes m_h. Source: Press et al. 2022.

    A key after its query (prefix masks, bidirectional models) is as far away as one before it.
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def bias(self, positions: TokenPositions) -> DistanceBias:
        return _bound(positions, partial(_sloped, alibi_slopes(self.heads).to(positions.query.device)))


def alibi_slopes(heads: int) -> Float[Tensor, "heads"]:
    """2^(−8h/H) for h = 1 … H where H is a power of two.

    Otherwise those of the next lower power n, then every other slope of 2n, which stand between them.
    """
    power = 2 ** int(math.log2(heads))
    between = torch.arange(1, 2 * power + 1, 2)[: heads - power] / (2 * power)
    return torch.cat([2.0 ** (-8 * torch.arange(1, power + 1) / power), 2.0 ** (-8 * between)])


def bucket(distance: Int[Tensor, "*n"], *, two_sided: bool = False) -> Int[Tensor, "*n"]:
    """T5's bucket of q − k: 32 buckets, of which half count single steps and half grow by powers up to distance 128.

    One-sided: keys after the query share bucket 0. Two-sided: half of the buckets for each side, those of keys after
    the query behind the others.
    """
    buckets, offset = BUCKETS, torch.zeros_like(distance)
    if two_sided:
        buckets //= 2
        offset = buckets * (distance < 0)
        distance = distance.abs()
    steps = buckets // 2
    growth = (distance.clamp(min=1).float() / steps).log() / math.log(REACH / steps)
    far = (steps + (growth * (buckets - steps)).long()).clamp(max=buckets - 1)
    return offset + torch.where(distance < steps, distance.clamp(min=0), far)


def _bound(positions: TokenPositions, of: Callable[[Tensor], Tensor]) -> DistanceBias:
    known = positions.known()
    return DistanceBias(known.query, known.key, of)


def _looked_up(
    table: Float[Tensor, "buckets heads"], two_sided: bool, distance: Int[Tensor, "batch rows key"]
) -> Float[Tensor, "batch heads rows key"]:
    return table[bucket(distance, two_sided=two_sided)].movedim(-1, 1).float()


def _growing(absolute: bool, distance: Int[Tensor, "batch rows key"]) -> Float[Tensor, "batch 1 rows key"]:
    return bucket(distance.abs() if absolute else distance)[:, None].float()


def _sloped(
    slopes: Float[Tensor, "heads"], distance: Int[Tensor, "batch rows key"]
) -> Float[Tensor, "batch heads rows key"]:
    return -slopes[:, None, None] * distance.abs()[:, None]
