"""Every published definition of a sink, applied to the same measurement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Bool, Float

from sinkscope import metrics
from sinkscope.measurements.selection import CAUSAL, TokenView

Flags = Bool[np.ndarray, "sample position"]


@dataclass(frozen=True)
class Definition:
    """A rule that calls some tokens sinks. `rule` may name {epsilon}; `needs` are variables of a measurement."""

    name: str
    source: str
    rule: str
    needs: tuple[str, ...]
    flags: Callable[[TokenView], Flags]

    def missing(self, data: xr.Dataset) -> list[str]:
        """Variables that were not observed."""
        return [name for name in self.needs if name not in data]


def definition_table(data: xr.Dataset, epsilon: float) -> pd.DataFrame:
    """See `Measurement.definitions`."""
    flags = _all_flags(data, epsilon)
    reference = next(iter(flags.values()), None)
    rows = []
    for definition in DEFINITIONS:
        row: dict[str, str | float] = {
            "definition": definition.name,
            "source": definition.source,
            "rule": definition.rule.format(epsilon=f"{epsilon:g}"),
        }
        if (found := flags.get(definition.name)) is not None and reference is not None:
            rows.append(row | _summary(found, data) | {"agreement": jaccard(reference, found), "note": ""})
        else:
            rows.append(row | {"note": f"not observed: {', '.join(definition.missing(data))}"})
    columns = ["definition", "source", "rule", "sinks", "position_0", "elsewhere", "elsewhere_share", "agreement"]
    return pd.DataFrame(rows, columns=[*columns, "note"]).astype({"elsewhere": "Int64"})


def agreement(data: xr.Dataset, epsilon: float) -> pd.DataFrame:
    """See `Measurement.agreement`."""
    flags = _all_flags(data, epsilon)
    values = [[jaccard(one, other) for other in flags.values()] for one in flags.values()]
    return pd.DataFrame(values, index=list(flags), columns=list(flags))


def jaccard(one: Flags, other: Flags) -> float:
    """|A ∩ B| / |A ∪ B| over (sample, position); 1 where both are empty, since they agree that there is no sink."""
    union = (one | other).sum()
    return float((one & other).sum() / union) if union else 1.0


def _all_flags(data: xr.Dataset, epsilon: float) -> dict[str, Flags]:
    view = TokenView(data, epsilon)
    present = [definition for definition in DEFINITIONS if not definition.missing(data)]
    return {definition.name: definition.flags(view) & view.counted for definition in present}


def _summary(flags: Flags, data: xr.Dataset) -> dict[str, float]:
    """Sinks per sample; percent of samples in which position 0 is one; the most frequent other position."""
    positions = data["position"].values
    shares = 100 * flags.mean(0)
    others = np.where(positions == 0, -1.0, shares)
    best = int(others.argmax())
    found = {"sinks": float(flags.sum(1).mean()), "position_0": float(shares[positions == 0].sum())}
    if others[best] > 0:
        found |= {"elsewhere": int(positions[best]), "elsewhere_share": float(others[best])}
    return found


def _some_head(exceeding: Bool[np.ndarray, "sample layer head position"]) -> Flags:
    return np.asarray(exceeding.any((1, 2)))


def _received(threshold: float | None = None) -> Callable[[TokenView], Flags]:
    """Attention received above a threshold (the view's epsilon where it is None) in some head."""

    def flags(view: TokenView) -> Flags:
        return _some_head(view.per_head("attention_received") > (view.epsilon if threshold is None else threshold))

    return flags


def _over_uniform_mass(view: TokenView) -> Flags:
    return _some_head(view.per_head("attention_received") > 5 / view.tokens[:, None, None, None])


def _initial(view: TokenView) -> Flags:
    """Those of the first four that get more than uniform attention in a head with over half of its mass on the four."""
    received, uniform = view.per_head("attention_received"), view.per_head("uniform_received")[:, :, None]
    if view.positions[:4].tolist() != [0, 1, 2, 3]:
        return np.zeros((len(received), len(view.positions)), dtype=bool)
    tokens = view.data["tokens"].values[:, view.layers]
    causal = np.full(int(view.layers.sum()), view.stack == CAUSAL)
    heavy = metrics.mass_on_first(received, tokens, causal, 4) > 0.5
    return (view.positions < 4) & _some_head(heavy[..., None] & (received > uniform))


def _most_attended(view: TokenView) -> Flags:
    return _some_head(view.per_head("most_attended") > 0.5)


def _massive(magnitude: float) -> Callable[[TokenView], Flags]:
    """The token holds a massive entry at some depth."""

    def flags(view: TokenView) -> Flags:
        massive = metrics.is_massive(view.per_depth("hidden_top"), view.per_depth("hidden_median"), magnitude=magnitude)
        at = view.per_depth("hidden_top_position")[..., None] == view.positions
        return np.asarray((massive[..., None] & at).any((1, 2)))

    return flags


def _outlier_tokens(view: TokenView) -> Flags:
    return np.asarray(_above_median(view.per_depth("hidden_max"), 64.0).any(1))


def _high_norm(view: TokenView) -> Flags:
    return _above_median(view.per_depth("hidden_norm"), 3.0)[:, -1]


def _above_median(
    values: Float[np.ndarray, "sample depth position"], times: float
) -> Bool[np.ndarray, "sample depth position"]:
    """More than so many times the median token of the depth."""
    with metrics.quiet(), np.errstate(over="ignore"):  # activations may be all but infinite
        return np.asarray(values > times * np.nanmedian(values, -1, keepdims=True))


def _like_the_first(view: TokenView) -> Flags:
    """Secondary sinks at most of these depths, and the first token itself, to which they are alike."""
    found = metrics.secondary_sinks(view.per_depth("cos_hidden_first"), view.per_depth("hidden_norm"))
    return (found.share > 0.5) | ((view.positions == 0) & ~np.isnan(found.jump)[:, None])


def _drained(view: TokenView) -> Flags:
    lengths = view.per_head("value_norm")
    short = lengths < 0.5 * metrics.nanmean(lengths, -1)[..., None]
    return _some_head((view.per_head("attention_received") > view.epsilon) & short)


def _dark(view: TokenView) -> Flags:
    """The last band holds over half of the energy; only probed positions can be flagged."""
    data = view.data
    energy = view.per_depth("band_energy")
    flags = np.zeros((len(energy), len(view.positions)), dtype=bool)
    for column, position in enumerate(data["probe_position"].values.tolist()):
        last = energy[:, :, column, -1]
        flags[:, view.positions == position] |= np.any(last > 0.5, axis=1)[:, None]
    return flags


DEFINITIONS: tuple[Definition, ...] = (
    Definition(
        "attention received",
        "Gu et al. 2025",
        "mean attention received > {epsilon} in some head",
        ("attention_received",),
        _received(),
    ),
    Definition(
        "strong sink",
        "Barbero et al. 2025",
        "mean attention received > 0.8 in some head",
        ("attention_received",),
        _received(0.8),
    ),
    Definition(
        "five times uniform",
        "Yu et al. 2024",
        "mean attention received > 5 / T in some head",
        ("attention_received",),
        _over_uniform_mass,
    ),
    Definition(
        "initial tokens",
        "Xiao et al. 2024",
        "one of the first four, with more than uniform attention, in a head with over half of its mass on these four",
        ("attention_received", "uniform_received"),
        _initial,
    ),
    Definition(
        "most attended",
        "Kaul et al. 2024",
        "the largest weight of more than half of the queries that see it, in some head",
        ("most_attended",),
        _most_attended,
    ),
    Definition(
        "massive activation",
        "Sun et al. 2024",
        "an entry |a| > 100 and > 1000 × the median, at some depth",
        ("hidden_top", "hidden_top_position", "hidden_median"),
        _massive(100.0),
    ),
    Definition(
        "massive, relative alone",
        "Sun et al. 2024, for models of any scale",
        "an entry > 1000 × the median, at some depth",
        ("hidden_top", "hidden_top_position", "hidden_median"),
        _massive(1e-6),
    ),
    Definition(
        "outlier token",
        "Chen et al. 2024 (PrefixQuant)",
        "its largest entry > 64 × the median token's, at some depth",
        ("hidden_max",),
        _outlier_tokens,
    ),
    Definition(
        "high-norm token",
        "Darcet et al. 2023, as a ratio",
        "norm > 3 × the median token's at the last depth",
        ("hidden_norm",),
        _high_norm,
    ),
    Definition(
        "like the first token",
        "secondary sinks",
        "|cos| to the first token's state > 0.9 between its norm's jump and drop",
        ("cos_hidden_first", "hidden_norm"),
        _like_the_first,
    ),
    Definition(
        "value-state drain",
        "Guo et al. 2024a",
        "attention received > {epsilon} and a value shorter than half the mean, in one head",
        ("attention_received", "value_norm"),
        _drained,
    ),
    Definition(
        "dark signal",
        "Cancedda 2024",
        "over half of its energy in the last band of the unembedding, at some depth; probed positions only",
        ("band_energy",),
        _dark,
    ),
)
