"""How much one token's input can move another token's output, and the bound that attention weights set.

A network of attention layers with a residual stream, v_j ← v_j + Σ_h Σ_k α^h_jk M_h v_k, M_h = W_V^h W_O^h, scores
v_jᵀ B_h v_k, B_h = W_Q^h W_K^hᵀ / √d, causal. The block of a layer's Jacobian from token i to token j ≠ i is

    Σ_h α^h_ji M_h (I + (v_i − y^h_j)(B_hᵀ v_j)ᵀ),      y^h_j = Σ_k α^h_jk v_k,

and the block from j to itself has I + Σ_h M_h S^h_j B_hᵀ in addition, S^h_j = Σ_k α^h_jk v_k (v_k − y^h_j)ᵀ. So its
norm is at most C ᾱ_ji, where ᾱ = Σ_h α^h + δ and C is the largest, over h, j and i, of

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
from sinkscope.statistics.claims import CaseValue, EachAbove
from sinkscope_replication.theory import closed_forms as closed
from sinkscope_replication.theory.check import EXACT, ROUNDING, check
from sinkscope_replication.theory.mixing import BARBERO, OPENINGS, SOFTMAX, Vectors, random_tokens, sink

HEADS, DIM, WIDTH, TOKENS, LAYERS = 2, 4, 6, 7, 3
SHARPNESS = (0.25, 0.5, 1.0)
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

    def jacobian(self, vectors: Vectors) -> Float[Tensor, "token token width width"]:
        """∂v_j / ∂v_i of this layer for all j, i, as the blocks above, from weights and maps alone."""
        count, carried = len(vectors), (self.value @ self.output).mT  # columns are inputs
        scores, weights = self.query @ self.key.mT / DIM**0.5, self.weights(vectors)
        blocks = torch.zeros(count, count, WIDTH, WIDTH, dtype=torch.float64)
        same = torch.eye(WIDTH, dtype=torch.float64)
        blocks[range(count), range(count)] = same
        for moved, pull, alpha in zip(carried, scores, weights, strict=True):
            mean = alpha @ vectors
            for j in range(count):
                away = vectors - mean[j]
                spread = torch.einsum("k,ka,kb->ab", alpha[j], vectors, away)
                blocks[j, j] += moved @ spread @ pull.mT
                for i in range(count):
                    blocks[j, i] += alpha[j, i] * moved @ (same + torch.outer(away[i], vectors[j] @ pull))
        return blocks

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


def oversteps(frozen: bool, layers: Sequence[Layer] | None = None) -> Iterator[CaseValue]:
    """The largest ‖∂v_j / ∂v_i‖ − bound, where positive."""
    vectors = random_tokens(TOKENS, WIDTH)
    for seed in SEEDS:
        chosen = layers or network(seed)
        for depth in sorted({1, len(chosen)}):  # one layer alone too, where the bound is not yet far above
            over = sensitivities(chosen[:depth], vectors, frozen) - bounds(chosen[:depth], vectors, frozen)
            yield CaseValue(f"seed {seed}, layers: {depth}", float(over.clamp(min=0).max()))
    for sharpness in () if layers else SHARPNESS:
        layer, pair = aligned(sharpness)
        over = sensitivities([layer], pair, frozen) - bounds([layer], pair, frozen)
        yield CaseValue(f"two tokens along one direction, sharpness {sharpness:g}", float(over.clamp(min=0).max()))


def single_layer_share() -> Iterator[CaseValue]:
    """Largest ‖∂v_j / ∂v_i‖ / bound of one layer with fixed weights, i ≠ j: how near the bound can come."""
    vectors = random_tokens(TOKENS, WIDTH)
    for seed in SEEDS:
        chosen = network(seed)[:1]
        share = sensitivities(chosen, vectors, True) / bounds(chosen, vectors, True)
        yield CaseValue(f"seed {seed}", float(share.tril(-1).nan_to_num().max()))


def blocks_follow() -> Iterator[CaseValue]:
    """max |∂v_j / ∂v_i of one layer − the block above|, over all i and j."""
    vectors = random_tokens(TOKENS, WIDTH)
    for seed in SEEDS:
        layer = network(seed)[0]
        jacobian = torch.autograd.functional.jacobian(layer, vectors).transpose(1, 2)
        yield CaseValue(f"seed {seed}", float((jacobian - layer.jacobian(vectors)).abs().max()))


def constant_is_reached() -> Iterator[CaseValue]:
    """‖∂v_2 / ∂v_1‖ / bound of one layer on two tokens along one direction, whole Jacobian.

    One head whose maps are multiples of a projection on that direction: every factor of the bound attains its norm.
    """
    for sharpness in SHARPNESS:
        layer, vectors = aligned(sharpness)
        share = sensitivities([layer], vectors) / bounds([layer], vectors)
        yield CaseValue(f"sharpness {sharpness:g}", float(share[1, 0]))


def aligned(sharpness: float) -> tuple[Layer, Vectors]:
    """A layer and two tokens along one direction, the second query's scores `sharpness` apart."""
    along = torch.zeros(1, WIDTH, DIM, dtype=torch.float64)
    along[0, 0, 0] = 1
    operation = SOFTMAX.build(heads=1, kv_heads=1, head_dim=DIM, hidden_size=WIDTH).double()
    vectors = torch.zeros(2, WIDTH, dtype=torch.float64)
    vectors[:, 0] = torch.tensor([2.0, 1.0])
    layer = Layer(sharpness * along, along, along, along.mT.contiguous(), operation)
    return layer, vectors


def future_is_deaf() -> Iterator[CaseValue]:
    """max ‖∂v_j / ∂v_i‖ over i > j."""
    for seed in SEEDS:
        blocks = sensitivities(network(seed), random_tokens(TOKENS, WIDTH))
        yield CaseValue(f"seed {seed}", float(blocks.triu(1).max()))


def sink_lowers() -> Iterator[CaseValue]:
    """By how much of itself Σ_{i<j} ‖∂v_j / ∂v_i‖ falls from one sink to the next stronger one."""
    vectors = random_tokens(TOKENS, WIDTH)
    for seed in SEEDS:
        sums = [float(sensitivities(network(seed, sink(b)), vectors).tril(-1).sum()) for b in OPENINGS]
        for (weaker, stronger), (before, after) in zip(pairwise(OPENINGS), pairwise(sums), strict=True):
            yield CaseValue(f"seed {seed}, b = {weaker:g} → {stronger:g}", 1 - after / before)


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
        "the whole Jacobian",
        "for one layer it is Σ_h α_ji M (I + (v_i − y_j)(Bᵀ v_j)ᵀ), and I + Σ_h M S_j Bᵀ more for i = j",
        "derived here, after Barbero et al. 2025",
        ROUNDING,
        blocks_follow,
    ),
    check(
        "the bound is sharp",
        "two tokens along one direction: one layer's whole Jacobian comes to more than half of its bound, so half of C "
        "is refuted by the claims above",
        "control",
        EachAbove(0.5),
        constant_is_reached,
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
