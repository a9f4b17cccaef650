"""What a sink is for: its value removed or made constant, another text's sink in its place, its mass moved."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sinkscope.errors import InputError
from sinkscope.interventions.folding import Constants
from sinkscope.interventions.inside import Inside, QueryRows, Replacing, check_places

Side = Literal["sink", "others"]
ENOUGH = 0.02  # mean mass below which there was too little to move


@dataclass(frozen=True)
class MuteSink(Replacing):
    """v_p = 0 with A_tp unchanged: o_t ← o_t − A_tp v_p, for queries t ≥ p + `after` of the keys p in `on`."""

    def instead(self, rows: QueryRows, columns: slice) -> tuple[None, Float[Tensor, "batch kv_heads key value_dim"]]:
        return None, torch.zeros_like(rows.call.wide_value[:, :, columns])


@dataclass(frozen=True, kw_only=True)
class MeanSink(Replacing):
    """v_p ← its mean over *other* texts, with A_tp unchanged, for queries t ≥ p + `after` of the keys p in `on`.

    The mean is one vector per layer, key-value head and position (`Constants`). If this costs nothing although MuteSink
    does, the value is needed, but carries nothing about the text.
    """

    constants: Constants

    def instead(self, rows: QueryRows, columns: slice) -> tuple[None, Float[Tensor, "batch kv_heads key value_dim"]]:
        _, value = self.constants.vectors(rows)
        return None, value[:, :, columns]

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"constants": self.constants.describe()}


@dataclass(frozen=True, kw_only=True)
class SwapSink(Replacing):
    """k_p and v_p ← those of position p in *another* text, for queries t ≥ p + `after` of the keys p in `on`.

    `donors`: for each row of the inputs, which of the texts of `constants` gives them.
    """

    constants: Constants
    donors: tuple[int, ...] = (0,)

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        check_places(model, stack)
        super().attach(model, stack)

    def instead(
        self, rows: QueryRows, columns: slice
    ) -> tuple[Float[Tensor, "batch heads query key"], Float[Tensor, "batch kv_heads key value_dim"]]:
        key, value = self.constants.vectors(rows, self.donors)
        return rows.scores_on(key, columns), value[:, :, columns]

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"constants": self.constants.describe(), "donors": list(self.donors)}


@dataclass(eq=False)
class Mass:
    """Mean of the moved mass over samples, heads, layers and queries after the sink."""

    total: float = 0.0
    count: int = 0

    @property
    def mean(self) -> float:
        """NaN if nothing was moved yet."""
        return self.total / self.count if self.count else float("nan")


@dataclass(frozen=True)
class TrimMass(Inside):
    """Move mass off the sink, or the same mass off the other tokens, with the same amplification of the rest.

    For each head and query t ≥ p + `after`: m = ½ · min(A_sink, A_others), with A_others the mass of visible tokens
    other than the sinks and the query's own. `off="sink"`: A_tk ← A_tk (1 − m / A_sink) for the sinks; `off="others"`:
    A_tk ← A_tk (1 − m / A_others) for the others; then the row, including slots, is divided by 1 − m. `mass.mean` gives
    m after the passes; below .02 there was too little mass to move. Control: the other side, for the same keys.
    """

    off: Side = "sink"
    mass: Mass = field(default_factory=Mass, compare=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.off not in ("sink", "others"):
            raise InputError(f"off = '{self.off}': choose 'sink' or 'others'")

    def changed(self, rows: QueryRows) -> Float[Tensor, "batch heads query value_dim"]:
        token, slot, moved = trimmed(rows, self)
        # A query that sees no token has no mass that could be moved, and would lower the mean.
        awake = rows.hit.any(-1) & (rows.token.sum(-1) > 0)
        self.mass.total += float(moved[awake].double().sum())
        self.mass.count += int(awake.sum())
        return rows.output(token, slot)

    def control(self, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> TrimMass:
        return replace(self, off="others" if self.off == "sink" else "sink", mass=Mass())

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"off": self.off}


def trimmed(
    rows: QueryRows, trim: TrimMass
) -> tuple[
    Float[Tensor, "batch heads query key"], Float[Tensor, "batch heads query slots"], Float[Tensor, "batch heads query"]
]:
    """Weights on tokens and slots after `trim`, and the mass that was moved.

    Raises `UnsupportedModelError` if the weights are not a softmax.
    """
    # Raises where weights are not a softmax: only there do rows sum to 1, as the equations below assume.
    _ = rows.logits
    among = rows.hit if trim.off == "sink" else rows.others(trim.targets)
    source = rows.token.masked_fill(~among, 0.0).sum(-1)
    moved = rows.movable(trim.targets)
    # Where the source has no mass, m is 0 and the quotient 0 / tiny = 0.
    kept = 1 - moved / source.clamp(min=torch.finfo(source.dtype).tiny)
    token = torch.where(among, rows.token * kept[..., None], rows.token)
    # The two masses sum to at most 1, so m ≤ ¼ and the divisor is at least ¾.
    whole = (1 - moved)[..., None]
    return token / whole, rows.slot / whole, moved
