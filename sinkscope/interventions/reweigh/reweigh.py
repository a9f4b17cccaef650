"""More or less weight on chosen tokens, with the rest of each row renormalized (ZeroTuning's change of a head)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from sinkscope.attention.scores import wide
from sinkscope.errors import InputError
from sinkscope.hooks import OpenStream, row_length
from sinkscope.interventions.intervention import whole
from sinkscope.interventions.residual import other_positions
from sinkscope.interventions.reweigh.call import Call, columns_of, keys_at, slot_mass
from sinkscope.interventions.reweigh.head_changes import Change, HeadChange, pairs

PRECISE = 0.125  # below, the rest comes from a second pass: o − o_S loses its digits if the set has all the weight
FEW = 64  # larger sets of keys go through the function as a whole instead of key by key


@dataclass(frozen=True)
class Reweigh(HeadChange):
    """A'[t, k] = γ A[t, k] / Z for keys k at `positions`, and A[t, k] / Z for all others, with Z the sum over the row.

    This adds log γ to the logits of these keys; slots (learned sinks) are among the others. With the weight m = Σ_S A
    and its share of the output o_S = Σ_S A v: o' = (o + (γ − 1) o_S) / (1 + (γ − 1) m), exactly and without a T × T
    map. γ = 0 removes them; a query that sees nothing else keeps what it had, so position 0 keeps itself. γ = 1 changes
    nothing. Positions count real tokens; `heads`: (layer, head), None for all of the changed stack.

    Observers of a layer read its weights before this change. Raises `InputError` for a γ that is negative or not
    finite; when applied, `UnsupportedModelError` for weights that are not a softmax. Control: the same γ on as many
    other positions, among those that at least half of the queries see. Source: Han et al. 2025 (ZeroTuning), who scale
    the first token only, on written-out maps.
    """

    gamma: float
    positions: Sequence[Any] = (0,)
    heads: Sequence[Any] | None = None

    def __post_init__(self) -> None:
        check_factor("gamma", self.gamma)
        object.__setattr__(self, "positions", whole("positions", self.positions))
        object.__setattr__(self, "heads", pairs(self.heads))

    def change(self, opened: OpenStream) -> Change:
        return lambda call: of_call(call, call.at(self.positions_named), self.gamma)

    def control(self, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> Reweigh:
        half = (row_length(model, inputs) + 1) // 2
        return replace(self, positions=other_positions(generator, model, inputs, self.positions_named, stop=half))

    @property
    def positions_named(self) -> tuple[int, ...]:
        return tuple(self.positions)


def of_call(call: Call, chosen: Bool[Tensor, "batch key"], gamma: float) -> Float[Tensor, "batch heads query dim"]:
    """The output of an attention call with γ on a set of keys, which may differ between rows."""
    if gamma == 1 or not bool(chosen.any()):
        return call.output
    if gamma < PRECISE:
        return _precisely(call, chosen, gamma)
    if int(chosen.sum(-1).max()) > FEW:
        return reweighed(call.output, call.part(chosen), call.masses(chosen)[0], gamma)
    columns, there = columns_of(chosen)
    # Rows with fewer keys in the set are filled with other columns, whose weights must not count.
    weights = call.weights(columns) * there[:, None, None]
    return reweighed(call.output, weighed(weights, keys_at(call.value, columns)), weights.sum(-1), gamma)


def reweighed(
    output: Float[Tensor, "batch heads query dim"],
    on_set: Float[Tensor, "batch heads query dim"],
    mass: Float[Tensor, "batch heads query"],
    gamma: float,
) -> Float[Tensor, "batch heads query dim"]:
    """o' = (o + (γ − 1) o_S) / (1 + (γ − 1) m), with the set's part o_S = Σ_S A v and mass m = Σ_S A.

    The rounding error grows as 1/γ if the set has all the weight: use `joined` for small γ.
    """
    return torch.addcmul(output, on_set, output.new_tensor(gamma - 1)) / (1 + (gamma - 1) * mass)[..., None]


def joined(
    on_set: Float[Tensor, "batch heads query dim"],
    on_rest: Float[Tensor, "batch heads query dim"],
    mass: Float[Tensor, "batch heads query"],
    remaining: Float[Tensor, "batch heads query"],
    gamma: float,
) -> Float[Tensor, "batch heads query dim"]:
    """o' = (γ o_S + o_R) / (γ m + r), from the parts and masses of the set and of the rest.

    If both are 0 (γ = 0, and nothing else is visible), γ counts as 1.

    Args:
        on_set, on_rest: o_S, o_R: Σ A v over the set and over the other keys.
        mass, remaining: m, r: Σ A over the same.
        gamma: γ, the factor of the weights on the set, at least 0.
    """
    factor = torch.full_like(mass, gamma).masked_fill(gamma * mass + remaining == 0, 1.0)
    total = factor * mass + remaining
    return (factor[..., None] * on_set + on_rest) / total.masked_fill(total == 0, 1.0)[..., None]  # 0: a row of padding


def weighed(
    weights: Float[Tensor, "batch heads query n"], values: Float[Tensor, "batch kv_heads n dim"]
) -> Float[Tensor, "batch heads query dim"]:
    """Σ_n a_n v_n, with the values of each query head's group."""
    batch, heads, queries, n = weights.shape
    # (batch, kv_heads, group · query, n)
    grouped = weights.reshape(batch, values.shape[1], -1, n)
    return torch.matmul(grouped, wide(values)).view(batch, heads, queries, -1)


def check_factor(name: str, value: Any) -> None:
    """Raises `InputError` for anything but a finite number of at least 0."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not isfinite(value) or value < 0:
        raise InputError(f"{name} = {value!r}: expected a finite number, at least 0")


def _precisely(call: Call, chosen: Tensor, gamma: float) -> Tensor:
    """From the rest as the function gives it, which is exact even if the set has nearly all the weight."""
    on_rest, on_set = call.part(~chosen), call.part(chosen)
    mass, remaining = call.masses(chosen, ~chosen)
    if call.has_slots:  # slots belong to the rest, and cannot be marked
        remaining = remaining + slot_mass(call, chosen, mass, remaining)
        on_rest = on_rest + call.constant if call.has_slot_values else on_rest
    return joined(on_set, on_rest, mass, remaining, gamma)
