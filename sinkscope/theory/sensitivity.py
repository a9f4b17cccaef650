"""How much one token's input can move another token's output, and the bound that attention weights set.

A network of attention layers with a residual stream, v_j ← v_j + Σ_h Σ_k α^h_jk M_h v_k, M_h = W_V^h W_O^h, scores
v_jᵀ B_h v_k, B_h = W_Q^h W_K^hᵀ / √d, causal. Of a layer's Jacobian the block from token i to token j ≠ i is

    Σ_h α^h_ji M_h (I + (v_i − y^h_j)(B_hᵀ v_j)ᵀ),      y^h_j = Σ_k α^h_jk v_k,

and that of j to itself has I + Σ_h M_h S^h_j B_hᵀ in addition, S^h_j = Σ_k α^h_jk v_k (v_k − y^h_j)ᵀ. So its norm is at
most C ᾱ_ji, where ᾱ = Σ_h α^h + δ and C is the largest, over h, j and i, of

    ‖M_h‖ (1 + ‖v_i − y^h_j‖ ‖B_hᵀ v_j‖)     and     1 + Σ_h ‖M_h‖ ‖S^h_j‖ ‖B_h‖,

measured on the pass at hand. With the weights held fixed C = max(1, ‖M_h‖) does. Over L layers the Jacobian's blocks
are bounded by C_max^L (ᾱ^L ⋯ ᾱ^1)_ji, a sum over all paths from i to j. The form is that of Barbero et al. 2025, who
leave C_max as a Lipschitz constant; these constants are derived here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.attention import AttentionSpec, Operation
from sinkscope.claims import EachAbove, Evidence
from sinkscope.theory import closed_forms as closed
from sinkscope.theory.check import check
from sinkscope.theory.mixing import BARBERO, OPENINGS, SOFTMAX, Vectors, random_tokens, sink
from sinkscope.theory.tolerances import EXACT, ROUNDING

HEADS, DIM, WIDTH, TOKENS, LAYERS = 2, 4, 6, 7, 3
SEEDS = (0, 1, 2)

Blocks = Float[Tensor, "token token"]


@dataclass(frozen=True, eq=False)
class Layer:
    """An attention layer without a norm: four maps, and the operation between them."""

    query: Float[Tensor, "heads width dim"]
    key: Float[Tensor, "heads width dim"]
    value: Float[Tensor, "heads width dim"]
    output: Float[Tensor, "heads dim width"]
    operation: Operation

    def weights(self, vectors: Vectors) -> Float[Tensor, "heads query key"]:
        """α of every head, without a gradient."""
        query, key = vectors @ self.query, vectors @ self.key
        with torch.no_grad():
            return self.operation.weights(query[None], key[None]).token[0]

    def __call__(self, vectors: Vectors, frozen: bool = False) -> Vectors:
        """V + attention(V); `frozen`: the weights do not move with V."""
        query, key, value = vectors @ self.query, vectors @ self.key, vectors @ self.value
        if frozen:
            attended = self.weights(vectors) @ value
        else:
            attended = self.operation(query[None], key[None], value[None], path="reference").output[0]
        return vectors + (attended @ self.output).sum(0)

    def constant(self, vectors: Vectors, frozen: bool = False) -> float:
        """C of this layer on these vectors."""
        carried = _norm(self.value @ self.output)
        if frozen:
            return max(1.0, float(carried.max()))
        scores = self.query @ self.key.mT / DIM**0.5
        weights = self.weights(vectors)
        mean = weights @ vectors
        away = vectors - mean[:, :, None]  # v_i − y_j: (head, j, i, width)
        pulled = (vectors @ scores).norm(dim=-1)
        others = carried[:, None, None] * (1 + away.norm(dim=-1) * pulled[..., None])
        moments = torch.einsum("hjk,ka,hjkb->hjab", weights, vectors, away)
        own = 1 + (carried[:, None] * _norm(moments) * _norm(scores)[:, None]).sum(0)
        return max(float(others.max()), float(own.max()))


def network(seed: int, spec: AttentionSpec = SOFTMAX) -> list[Layer]:
    """Random layers."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) / WIDTH**0.5

    inward = (HEADS, WIDTH, DIM)
    operations = [
        spec.build(heads=HEADS, kv_heads=HEADS, head_dim=DIM, hidden_size=WIDTH).double() for _ in range(LAYERS)
    ]
    return [
        Layer(draw(*inward), draw(*inward), draw(*inward), draw(HEADS, DIM, WIDTH), operation)
        for operation in operations
    ]


def sensitivities(layers: Sequence[Layer], vectors: Vectors, frozen: bool = False) -> Blocks:
    """‖∂v_j^L / ∂v_i^0‖ (spectral) for all j, i."""

    def run(start: Vectors) -> Vectors:
        for layer in layers:
            start = layer(start, frozen)
        return start

    jacobian = torch.autograd.functional.jacobian(run, vectors)
    return _norm(jacobian.transpose(1, 2))


def bounds(layers: Sequence[Layer], vectors: Vectors, frozen: bool = False) -> Blocks:
    """C_max^L (ᾱ^L ⋯ ᾱ^1)_ji for all j, i."""
    constants, weights = [], []
    for layer in layers:
        constants.append(layer.constant(vectors, frozen))
        weights.append(layer.weights(vectors))
        with torch.no_grad():
            vectors = layer(vectors)
    return max(constants) ** len(layers) * closed.path_weights(weights)


def oversteps(frozen: bool, layers: Sequence[Layer] | None = None) -> Iterator[Evidence]:
    """The largest ‖∂v_j / ∂v_i‖ − bound, where positive."""
    vectors = random_tokens(TOKENS, WIDTH)
    for seed in SEEDS:
        chosen = layers or network(seed)
        over = sensitivities(chosen, vectors, frozen) - bounds(chosen, vectors, frozen)
        yield Evidence(f"seed {seed}", float(over.clamp(min=0).max()))


def single_layer_share() -> Iterator[Evidence]:
    """Largest ‖∂v_j / ∂v_i‖ / bound of one layer with fixed weights, i ≠ j: how near the bound can come."""
    vectors = random_tokens(TOKENS, WIDTH)
    for seed in SEEDS:
        chosen = network(seed)[:1]
        share = sensitivities(chosen, vectors, True) / bounds(chosen, vectors, True)
        yield Evidence(f"seed {seed}", float(share.tril(-1).nan_to_num().max()))


def future_is_deaf() -> Iterator[Evidence]:
    """max ‖∂v_j / ∂v_i‖ over i > j."""
    for seed in SEEDS:
        found = sensitivities(network(seed), random_tokens(TOKENS, WIDTH))
        yield Evidence(f"seed {seed}", float(found.triu(1).max()))


def sink_lowers() -> Iterator[Evidence]:
    """By how much of itself Σ_{i<j} ‖∂v_j / ∂v_i‖ falls from one sink to the next stronger one."""
    vectors = random_tokens(TOKENS, WIDTH)
    for seed in SEEDS:
        sums = [float(sensitivities(network(seed, sink(b)), vectors).tril(-1).sum()) for b in OPENINGS]
        for (weaker, stronger), (before, after) in zip(pairwise(OPENINGS), pairwise(sums), strict=True):
            yield Evidence(f"seed {seed}, b = {weaker:g} → {stronger:g}", 1 - after / before)


def _norm(blocks: Float[Tensor, "*batch rows columns"]) -> Float[Tensor, "*batch"]:
    return torch.linalg.matrix_norm(blocks, 2)


CHECKS = (
    check(
        "sensitivity, weights fixed",
        f"‖∂v_j^L / ∂v_i^0‖ ≤ C^L (ᾱ^L ⋯ ᾱ^1)_ji, ᾱ = Σ_h α + δ, C = max(1, ‖W_V W_O‖), {LAYERS} layers",
        BARBERO,
        ROUNDING,
        lambda: oversteps(frozen=True),
    ),
    check(
        "sensitivity",
        "the same bound on the whole Jacobian, weights moving, with C from values, scores and weights of the pass",
        BARBERO,
        ROUNDING,
        lambda: oversteps(frozen=False),
    ),
    check(
        "the bound says something",
        "the Jacobian of one layer with fixed weights comes to more than a tenth of the bound",
        "control",
        EachAbove(0.1),
        single_layer_share,
    ),
    check(
        "no token moves an earlier one",
        "∂v_j / ∂v_i = 0 for i > j, exactly",
        "Gu et al. 2025",
        EXACT,
        future_is_deaf,
    ),
    check(
        "a sink lowers sensitivity",
        "the stronger a sink without a value, the smaller Σ_{i<j} ‖∂v_j / ∂v_i‖",
        BARBERO,
        EachAbove(0),
        sink_lowers,
    ),
)
