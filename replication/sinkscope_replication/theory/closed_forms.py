"""What theory says, in float64: pure functions that know no model and share no code with what they are compared to."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

EPSILON = 0.3
"""The threshold of the paper's sink metric (strict)."""


def by_distance(bias: Float[Tensor, "heads tokens"]) -> Float[Tensor, "heads query key"]:
    """A[t, i] = e^{g(t−i)} / Σ_{j ≤ t} e^{g(t−j)}: causal weights where the content of all tokens is equal.

    `bias`: g(0), g(1), … per head. g = 0 gives A[t, i] = 1/t. Source: Gu et al. 2025, appendix B.
    """
    heads, tokens = bias.shape
    weights = bias.new_zeros(heads, tokens, tokens, dtype=torch.float64)
    for t in range(tokens):
        weights[:, t, : t + 1] = torch.softmax(bias[:, : t + 1].double().flip(-1), -1)
    return weights


def received(weights: Float[Tensor, "*heads query key"]) -> Float[Tensor, "*heads key"]:
    """alpha_k = Σ_{t ≥ k} A[t, k] / (T − k), positions from 0 (Gu et al. 2025, section 3)."""
    tokens = weights.shape[-1]
    return weights.sum(-2) / torch.arange(tokens, 0, -1, dtype=weights.dtype)


def bucket(distance: int, buckets: int = 32, furthest: int = 128) -> int:
    """The one-sided T5 bucket of a distance: itself below buckets/2, then logarithmic up to `furthest`.

    Distances 0, 1, 15, 16, 17, 31, 32, 63, 64, 90, 127, 128, 500 fall into 0, 1, 15, 16, 16, 21, 21, 26, 26, 29, 31,
    31, 31. Source: Raffel et al. 2020; sail-sg/Attention-Sink, model_relpos.py.
    """
    exact = buckets // 2
    if distance < exact:
        return distance
    share = math.log(distance / exact) / math.log(furthest / exact)
    return min(buckets - 1, exact + int(share * (buckets - exact)))


def alibi_slopes(heads: int) -> list[float]:
    """2^(−8h/H) for h = 1 … H, H a power of two. Source: Press et al. 2022."""
    return [2 ** (-8 * head / heads) for head in range(1, heads + 1)]


def rotary_scores(
    query: Float[Tensor, "heads dim"], key: Float[Tensor, "heads dim"], tokens: int, theta: float = 10000.0
) -> Float[Tensor, "heads tokens"]:
    """g(m) = Re Σ_c q_c conj(k_c) e^{i m θ_c} / √d: the rotary score on an equal token m positions before the query.

    q_c = q[c] + i q[c + d/2], θ_c = theta^(−2c/d), Llama's layout. Source: Su et al. 2021.
    """
    dim = query.shape[-1]
    half = dim // 2
    pairs = torch.complex(query[:, :half], query[:, half:]) * torch.complex(key[:, :half], key[:, half:]).conj()
    speed = theta ** (-2 * torch.arange(half, dtype=torch.float64) / dim)
    turns = torch.polar(torch.ones(tokens, half, dtype=torch.float64), torch.arange(tokens)[:, None] * speed)
    return (pairs[:, None] * turns).real.sum(-1) / dim**0.5


def rotary_bound(xi: Float[Tensor, "heads"], tokens: int) -> Float[Tensor, "heads tokens"]:
    """e^{2ξ} / (e^{2ξ} + t − 1) for t = 1 … T, ξ = ‖q‖ ‖k‖ / √d: no weight of row t exceeds it.

    Source: Gu et al. 2025, appendix B. Its mean over t bounds alpha_1: at T = 64, ξ = 0.5, 1, 1.5, 2 by 0.144, 0.269,
    0.455, 0.666.
    """
    others = torch.arange(tokens, dtype=torch.float64)
    return 1 / (1 + others * torch.exp(-2 * xi[:, None]))


def least_entropy(spread: float, count: int) -> float:
    """log(1 + (n − 1) b) + σ √(n (n − 1)) b / (1 + (n − 1) b), b = e^{−σ √(n / (n − 1))}, in nats.

    The least entropy of a softmax over n ≥ 2 logits whose centered l2 norm is σ. Source: Zhai et al. 2023, Theorem 3.1.
    """
    b = math.exp(-spread * math.sqrt(count / (count - 1)))
    total = 1 + (count - 1) * b
    return math.log(total) + spread * math.sqrt(count * (count - 1)) * b / total


def power_normalized(weights: Float[Tensor, "*rows key"], p: float) -> Float[Tensor, "*rows key"]:
    """w_i / (Σ_j w_j^p)^{1/p}: the p-normalizer of similarities proportional to `weights` in each row.

    Source: Gu et al. 2025, section 7.
    """
    return weights / weights.pow(p).sum(-1, keepdim=True).pow(1 / p)


def spread(vectors: Float[Tensor, "token width"]) -> float:
    """mu(V) = ‖V − (1/n) 1 1ᵀ V‖_F, 0 where all tokens are one and the same. Source: Dong et al. 2021."""
    return float(torch.linalg.matrix_norm(vectors - vectors.mean(0, keepdim=True)))


def path_weights(layers: list[Float[Tensor, "heads query key"]]) -> Float[Tensor, "query key"]:
    """Σ over paths of Π (Σ_h |A^h| + δ): the product of the layers' mixing matrices, the last layer first.

    Source: Barbero et al. 2025.
    """
    tokens = layers[0].shape[-1]
    product = torch.eye(tokens, dtype=torch.float64)
    for weights in layers:
        product = (weights.abs().sum(0) + torch.eye(tokens, dtype=torch.float64)) @ product
    return product
