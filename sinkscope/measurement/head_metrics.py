"""Every metric that has one value per head: how strong its sink is, by which mechanism, and what the head does with it.

`HEAD_METRICS` is the one table of them. The columns of `Measurement.heads`, the maps and numbers of the page, and the
lines on the terminal are made from its entries, so adding a metric means adding one entry. Formulas longer than a mean
are functions of `sinkscope.measurement.metrics`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
import xarray as xr

from sinkscope.measurement import metrics
from sinkscope.measurement.selection import HeadView, column_of, record_of

Drawing = Literal["share", "amount", "ratio", "signed"]
"""How a map is colored: a share of attention with its threshold; an amount; a ratio around 1; a signed number."""

Value = Callable[[HeadView], np.ndarray]


@dataclass(frozen=True)
class HeadMetric:
    """A value per head.

    `name`: its column in `Measurement.heads`. `title`, `about`: shown on the page. `formula`: for one sample, with s
    the position; a mean over samples follows unless the formula says otherwise. `needs`: variables of the measurement.
    `value` makes the array (layer, head). `draw`: how the page colors its map, None if it is not a number.
    `positioned`: whether it changes with the position selected on the page. `only_at`: the positions at which it was
    observed, None if at all, or if it does not refer to a position. At other positions it is absent.
    """

    name: str
    title: str
    about: str
    formula: str
    source: str
    needs: tuple[str, ...]
    value: Value
    unit: str = ""
    draw: Drawing | None = "amount"
    positioned: bool = False
    only_at: Callable[[xr.Dataset], Sequence[int]] | None = None

    def applies(self, data: xr.Dataset, position: int) -> bool:
        """Whether the measurement has what this needs, at this position."""
        if not all(name in data and bool(data[name].notnull().any()) for name in self.needs):
            return False
        return self.only_at is None or position in self.only_at(data)

    def at(self, data: xr.Dataset, epsilon: float, positions: Sequence[int]) -> np.ndarray:
        """The array (place, layer, head) at each position; only at the first for a metric that does not depend on
        it.
        """
        chosen = positions if self.positioned else positions[:1]
        return np.stack([self.value(HeadView(data, epsilon, position)) for position in chosen])

    def heading(self, position: int | None = None) -> str:
        """The title with its unit, and the position if it depends on one."""
        where = "" if position is None or not self.positioned else f", position {position}"
        return f"{self.title}{where}{f' ({self.unit})' if self.unit else ''}"


def _lift(at: HeadView) -> np.ndarray:
    uniform = at.data["uniform_received"].transpose("sample", "layer", "position").values
    return metrics.nanmean(metrics.lift(at["attention_received"], uniform)[..., at.column], 0)


def _over_others(name: str) -> Value:
    return lambda at: metrics.nanmean(metrics.value_ratio(at[name], at.column), 0)


def _labels(dim: str) -> Callable[[xr.Dataset], Sequence[int]]:
    return lambda data: data[dim].values.tolist()


def _updated(data: xr.Dataset) -> Sequence[int]:
    """The position whose part of the output was observed; none if several were observed together."""
    observers = record_of(data).get("observers", [])
    positions = next((each["positions"] for each in observers if each["name"] == "SinkUpdate"), [0])
    return positions if len(positions) == 1 else []


def _key_angle(at: HeadView) -> np.ndarray:
    manifold = metrics.key_manifold(at["key_vectors"], metrics.index_of(at.position, _labels("kept_position")(at.data)))
    return manifold.angle / manifold.chance


def _spike_cosine(at: HeadView) -> np.ndarray:
    probe = metrics.index_of(at.position, _labels("probe_position")(at.data))
    return metrics.nanmean(at["spike_key_cosine"][..., probe, -1], 0)


def _dormant(at: HeadView) -> np.ndarray:
    """True, False, or None if the head's outputs are not known."""
    norms = at["output_norm"]
    dormant = metrics.dormant(norms).astype(object)
    dormant[np.isnan(metrics.nanmean(metrics.nanmean(norms, -1), 0))] = None
    return dormant


def _kind(at: HeadView) -> np.ndarray:
    statistics = (at["attention_received"], at["value_norm"], at["output_rank_one"])
    return metrics.head_kinds(*statistics, at.column, epsilon=at.epsilon)


KINDS = {
    "no-op": "a sink head whose value there is short",
    "broadcast": "a sink head that writes one direction",
    "active": "any other head",
}
"""The meaning of the kinds of heads."""

HEAD_METRICS: tuple[HeadMetric, ...] = (
    HeadMetric(
        name="alpha",
        title="Attention received",
        about="Mean share of attention that the position gets from the tokens that see it; orange is above ε.",
        formula="α_s = Σ_t A_ts / number of queries t that see s",
        source="Gu et al. 2025",
        needs=("attention_received",),
        value=lambda at: at.here("attention_received"),
        draw="share",
        positioned=True,
    ),
    HeadMetric(
        name="sink",
        title="A sink, in samples",
        about="The share of samples in which the attention received exceeds ε.",
        formula="100 · [α_s > ε]",
        source="Gu et al. 2025",
        needs=("attention_received",),
        value=lambda at: (
            100 * metrics.nanmean(metrics.exceeds(at["attention_received"][..., at.column], at.epsilon), 0)
        ),
        unit="%",
        positioned=True,
    ),
    HeadMetric(
        name="slot",
        title="Attention on slots",
        about="Share of attention that goes to no token: a key bias, a sink logit, an off-by-one.",
        formula="mean_t (weight on slots)",
        source="Gu et al. 2025",
        needs=("slot_received",),
        value=lambda at: at.mean("slot_received"),
        draw="share",
    ),
    HeadMetric(
        name="self_attention",
        title="Attention to itself",
        about="Share of attention that tokens give to themselves; a sink can be here where own values are taken out.",
        formula="mean_t A_tt",
        source="Zhai 2026",
        needs=("self_attention",),
        value=lambda at: at.mean("self_attention"),
        draw="share",
    ),
    HeadMetric(
        name="value_ratio",
        title="Value norm ratio",
        about="Length of the position's value over the mean of the others: far below 1, attending to it adds little.",
        formula="‖v_s‖ / mean_{k≠s} ‖v_k‖",
        source="Gu et al. 2025; Guo et al. 2024a",
        needs=("value_norm",),
        value=_over_others("value_norm"),
        unit="×",
        draw="ratio",
        positioned=True,
    ),
    HeadMetric(
        name="key_ratio",
        title="Key norm ratio",
        about="Length of the position's key over the mean of the others: a sink's key is often not longer.",
        formula="‖k_s‖ / mean_{j≠s} ‖k_j‖",
        source="Gu et al. 2025",
        needs=("key_norm",),
        value=_over_others("key_norm"),
        unit="×",
        draw="ratio",
        positioned=True,
    ),
    HeadMetric(
        name="cos_sink",
        title="Query–key cosine",
        about="Mean cosine of the position's key with the queries that see it: it is the angle that makes a sink.",
        formula="mean_{t≠s} cos(q_t, k_s)",
        source="Gu et al. 2025",
        needs=("cos_query_key",),
        value=lambda at: at.here("cos_query_key"),
        draw="signed",
        positioned=True,
    ),
    HeadMetric(
        name="drain_correlation",
        title="Value drain",
        about="Rank correlation of attention received with value length over the tokens: below 0, what is attended to "
        "is short.",
        formula="Spearman's ρ over k of α_k with ‖v_k‖",
        source="Bondarenko et al. 2023; Guo et al. 2024a",
        needs=("attention_received", "value_norm"),
        value=lambda at: metrics.nanmean(
            metrics.value_drain_correlation(at["attention_received"], at["value_norm"]), 0
        ),
        draw="signed",
    ),
    HeadMetric(
        name="key_angle",
        title="Angle of the sink's key × chance",
        about="Angle between the sink's key and the subspace of the other keys, over that of a random direction: above "
        "1 the key lies on another manifold, below 1 where the others do.",
        formula="∠(k_s, span of the others' strongest directions) / ∠ of a random direction, over all kept samples",
        source="Gu et al. 2025 (their claim; the statistic is ours)",
        needs=("key_vectors",),
        value=_key_angle,
        draw="ratio",
        only_at=_labels("kept_position"),
    ),
    HeadMetric(
        name="cos_others",
        title="Query–key cosine elsewhere",
        about="Mean cosine of the other positions' keys with the queries that see them.",
        formula="mean_{j≠s} mean_{t≠j} cos(q_t, k_j)",
        source="Gu et al. 2025",
        needs=("cos_query_key",),
        value=lambda at: metrics.nanmean(metrics.mean_elsewhere(at["cos_query_key"], at.column), 0),
        draw="signed",
        positioned=True,
    ),
    HeadMetric(
        name="lift",
        title="Attention over uniform",
        about="Attention received over what uniform attention under the same mask would give: 1 is no preference.",
        formula="α_s / α_s of uniform attention (lift)",
        source="ours",
        needs=("attention_received", "uniform_received"),
        value=_lift,
        unit="×",
        draw="ratio",
        positioned=True,
    ),
    HeadMetric(
        name="spike_cosine",
        title="Key from the largest entries",
        about="Cosine with the position's key of the key that its token's few largest entries make alone.",
        formula="cos(k(x with its n largest entries alone), k(x))",
        source="Gu et al. 2025",
        needs=("spike_key_cosine",),
        value=_spike_cosine,
        draw="signed",
        only_at=_labels("probe_position"),
    ),
    HeadMetric(
        name="entropy",
        title="Attention entropy",
        about="How widely a query spreads its attention; 0 is a single key.",
        formula="mean_t −Σ_k A_tk ln A_tk",
        source="Zhai et al. 2023",
        needs=("attention_entropy",),
        value=lambda at: at.mean("attention_entropy"),
        unit="nats",
    ),
    HeadMetric(
        name="entropy_bound",
        title="Lower bound of the entropy",
        about="The least entropy that the size of the head's logits allows.",
        formula="see the observer AttentionEntropy",
        source="Zhai et al. 2023",
        needs=("entropy_bound",),
        value=lambda at: at.mean("entropy_bound"),
        unit="nats",
    ),
    HeadMetric(
        name="max_logit",
        title="Largest logit",
        about="The largest score, in absolute value, that any query gives a key.",
        formula="max_{t,k} |logit_tk|",
        source="Dehghani et al. 2023; Wortsman et al. 2023a",
        needs=("max_logit",),
        value=lambda at: at.mean("max_logit"),
    ),
    HeadMetric(
        name="output_norm",
        title="Output norm",
        about="Length of what the head writes, mean over positions: near 0, it does nothing.",
        formula="mean_t ‖o_t‖",
        source="Gu et al. 2025",
        needs=("output_norm",),
        value=lambda at: at.mean("output_norm"),
    ),
    HeadMetric(
        name="dormant",
        title="Dormant",
        about="True for a head that writes less than a tenth of what its layer's heads write on average.",
        formula="mean_t ‖o_t‖ < 0.1 · mean over the layer's heads, of means over samples",
        source="Guo et al. 2024a",
        needs=("output_norm",),
        value=_dormant,
        draw=None,
    ),
    HeadMetric(
        name="output_rank_one",
        title="Rank-one share of the output",
        about="Share of the output's energy along one line: near 1, the head writes one direction, more or less of it.",
        formula="σ_1² / Σ_i σ_i² of the outputs o_t",
        source="ours",
        needs=("output_rank_one",),
        value=lambda at: at.mean("output_rank_one"),
    ),
    HeadMetric(
        name="output_mean_share",
        title="Mean share of the output",
        about="Share of the output's energy that is its mean: at 1, every query gets the same.",
        formula="‖mean_t o_t‖² / mean_t ‖o_t‖²",
        source="ours",
        needs=("output_mean_share",),
        value=lambda at: at.mean("output_mean_share"),
    ),
    HeadMetric(
        name="sink_output_norm",
        title="Output from the sink",
        about="Length of what the sink alone contributes to the head's output.",
        formula="mean_t ‖A_ts v_s‖",
        source="Sun et al. 2024",
        needs=("sink_output_norm",),
        value=lambda at: at.mean("sink_output_norm"),
        only_at=_updated,
    ),
    HeadMetric(
        name="rest_output_norm",
        title="Output from the rest",
        about="Length of what all other tokens contribute.",
        formula="mean_t ‖Σ_{k≠s} A_tk v_k‖",
        source="Sun et al. 2024",
        needs=("rest_output_norm",),
        value=lambda at: at.mean("rest_output_norm"),
        only_at=_updated,
    ),
    HeadMetric(
        name="sink_output_constancy",
        title="Constancy of the sink's output",
        about="How alike the sink's contribution is for all queries: near 1, it acts as a bias.",
        formula="‖mean_t c_t‖² / mean_t ‖c_t‖², c_t = A_ts v_s",
        source="Sun et al. 2024",
        needs=("sink_output_constancy",),
        value=lambda at: at.mean("sink_output_constancy"),
        only_at=_updated,
    ),
    HeadMetric(
        name="kind",
        title="Kind",
        about="; ".join(f"{kind}: {words}" for kind, words in KINDS.items()) + ".",
        formula="α_s > ε and ‖v_s‖ small, or α_s > ε and the output of rank one; of means over samples",
        source="Guo et al. 2024a; thresholds ours",
        needs=("attention_received", "value_norm", "output_rank_one"),
        value=_kind,
        draw=None,
    ),
)


def applicable(data: xr.Dataset, position: int) -> list[HeadMetric]:
    """The metrics that this measurement has at this position, in the order of the table."""
    return [metric for metric in HEAD_METRICS if metric.applies(data, position)]


def head_values(data: xr.Dataset, epsilon: float, position: int) -> dict[HeadMetric, np.ndarray]:
    """Every applicable metric at a position. Raises `InputError` for a position that was not measured."""
    column_of(data, position)
    return {metric: metric.at(data, epsilon, [position])[0] for metric in applicable(data, position)}


def head_table(data: xr.Dataset, values: Mapping[HeadMetric, np.ndarray]) -> pd.DataFrame:
    """One row per head, one column per metric; heads that a layer lacks are left out."""
    layers, heads = data.sizes["layer"], data.sizes.get("head", 0)
    table = pd.DataFrame(
        {
            "stack": np.repeat(data["stack"].values.astype(str), heads),
            "layer": np.repeat(data["layer_index"].values, heads),
            "head": np.tile(np.arange(heads), layers),
            **{metric.name: _column(grid) for metric, grid in values.items()},
        }
    )
    numbers = [metric.name for metric, grid in values.items() if grid.dtype.kind == "f"]
    return table.dropna(how="all", subset=numbers, ignore_index=True)


def _column(grid: np.ndarray) -> Any:
    """The values of all heads; booleans that may be unknown as pandas' nullable type."""
    return pd.array(grid.ravel().tolist(), "boolean") if grid.dtype.kind == "O" else grid.ravel()
