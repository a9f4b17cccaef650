"""A measurement by head: how strong a head's sink is, by which mechanism, and what the head does with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float

from sinkscope.errors import InputError
from sinkscope.probes import metrics
from sinkscope.probes.measurements.measurement import Measurement

PerHead = Float[np.ndarray, "layer head"]
View = xr.Dataset  # the measurement's data, and the column of the sink's position

AVERAGED = {  # variables (sample, layer, head) that are shown as they are, averaged over samples
    "slot": "slot_received",
    "entropy": "attention_entropy",
    "entropy_bound": "entropy_bound",
    "max_logit": "max_logit",
    "output_rank_one": "output_rank_one",
    "output_mean_share": "output_mean_share",
    "sink_output_constancy": "sink_output_constancy",
}


def head_table(measurement: Measurement, epsilon: float, position: int) -> pd.DataFrame:
    """See `Measurement.heads`."""
    data = measurement.data
    if "position" not in data.coords or position not in data["position"].values:
        raise InputError(f"position {position} was not measured, so there is no table of heads around it")
    column = data["position"].values.tolist().index(position)
    values = {
        name: made for name, make in _columns(data, epsilon, column, position).items() if (made := make()) is not None
    }
    values |= {
        name: metrics.nanmean(data[variable].values, 0) for name, variable in AVERAGED.items() if variable in data
    }
    rows = [
        {"stack": str(data["stack"].values[layer]), "layer": int(data["layer_index"].values[layer]), "head": head}
        | {name: found[layer, head] for name, found in values.items()}
        for layer in range(data.sizes["layer"])
        for head in range(data.sizes.get("head", 0))
    ]
    table = pd.DataFrame(rows)
    numbers = table.drop(columns=["stack", "layer", "head", *(["kind"] if "kind" in table else [])])
    return table[numbers.notna().any(axis=1)].reset_index(drop=True)


def _columns(
    data: xr.Dataset, epsilon: float, column: int, position: int
) -> Mapping[str, Callable[[], np.ndarray | None]]:
    """How each column is made; None where its variables were not observed."""

    def of(*names: str) -> list[np.ndarray] | None:
        return [data[name].values for name in names] if all(name in data for name in names) else None

    def with_all(names: tuple[str, ...], make: Callable[..., np.ndarray]) -> Callable[[], np.ndarray | None]:
        return lambda: None if (found := of(*names)) is None else make(*found)

    received, value, key = "attention_received", "value_norm", "key_norm"
    return {
        "alpha": with_all((received,), lambda alpha: metrics.nanmean(alpha[..., column], 0)),
        "sink": with_all(
            (received,), lambda alpha: 100 * metrics.nanmean(metrics.exceeds(alpha[..., column], epsilon), 0)
        ),
        "boost": with_all(
            (received, "uniform_received"),
            lambda alpha, uniform: metrics.nanmean(metrics.boost(alpha, uniform)[..., column], 0),
        ),
        "peak": with_all(("attention_peak",), lambda peak: metrics.nanmean(peak[..., column], 0)),
        "value_ratio": with_all((value,), lambda lengths: metrics.nanmean(metrics.value_ratio(lengths, column), 0)),
        "key_ratio": with_all((key,), lambda lengths: metrics.nanmean(metrics.value_ratio(lengths, column), 0)),
        "cos_sink": with_all(("cos_query_key", key, "query_norm"), lambda *parts: _angles(parts, column).cos_sink),
        "cos_others": with_all(("cos_query_key", key, "query_norm"), lambda *parts: _angles(parts, column).cos_others),
        "drain_correlation": with_all(
            (received, value), lambda *parts: metrics.nanmean(metrics.value_drain_correlation(*parts), 0)
        ),
        "output_norm": with_all(("output_norm",), lambda lengths: metrics.nanmean(metrics.nanmean(lengths, -1), 0)),
        "dormant": with_all(("output_norm",), metrics.dormant),
        "key_angle": with_all(("key_vectors",), lambda keys: _against_chance(data, keys, position)),
        "kind": with_all(
            (received, value, "output_rank_one"),
            lambda alpha, lengths, rank: metrics.head_kinds(alpha, lengths, rank, column, epsilon=epsilon),
        ),
    }


def _against_chance(data: xr.Dataset, keys: np.ndarray, position: int) -> np.ndarray:
    """Angle of the sink's key to the subspace of the others, over a random direction's; NaN if it was not kept."""
    kept = data["kept_position"].values.tolist()
    if position not in kept:
        return np.full(keys.shape[1:3], np.nan)
    found = metrics.key_manifold(keys, kept.index(position))
    return found.angle / found.chance


def _angles(parts: tuple[np.ndarray, ...], column: int) -> metrics.AngleSplit:
    cosine, key, query = parts
    return metrics.angle_split(cosine, key, query, column)
