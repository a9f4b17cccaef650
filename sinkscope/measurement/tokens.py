"""A measurement by token: which become sinks, of which kind, which first ones do not; and by patch of an image."""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr

from sinkscope.errors import InputError
from sinkscope.measurement import metrics
from sinkscope.measurement.selection import TokenView, column_of, record_of
from sinkscope.measurement.texts import TokenTexts


def sink_tokens(data: xr.Dataset, epsilon: float, least: float) -> pd.DataFrame:
    """See `Measurement.sink_tokens`."""
    view = _view(data, epsilon)
    received, ids = view.per_head("attention_received"), data["token_id"].values
    return metrics.sinks_by_token(received, ids, view.counted, _texts(data), epsilon, least=least)


def token_kinds(data: xr.Dataset, epsilon: float) -> pd.DataFrame:
    """See `Measurement.token_kinds`."""
    view, texts = _view(data, epsilon), _texts(data)
    if not texts:
        raise InputError("kinds of tokens need their texts: measure with tokenizer=...")
    special = record_of(data).get("special_tokens", [])
    ids = data["token_id"].values
    return metrics.sinks_by_kind(view.per_head("attention_received"), ids, view.counted, texts, special, epsilon)


def first_tokens(data: xr.Dataset, epsilon: float) -> pd.DataFrame:
    """See `Measurement.first_tokens`."""
    view, texts = _view(data, epsilon), _texts(data)
    first = column_of(data, 0)
    ids = data["token_id"].values[:, first]
    rates = metrics.token_rates(view.per_head("attention_received"), epsilon)[:, first]
    table = pd.DataFrame({"token": [texts.get(int(token), "") for token in ids], "id": ids, "heads": rates})
    if "hidden_norm" in data:
        with metrics.quiet():
            table["hidden_norm_ratio"] = np.nanmax(metrics.first_over_rest(view.per_depth("hidden_norm")), 1)
    with metrics.quiet():
        above = (rates > 0.5 * np.nanmedian(rates)).tolist()
    table["becomes_sink"] = pd.array(
        [None if unknown else one for one, unknown in zip(above, np.isnan(rates), strict=True)], "boolean"
    )
    return table.sort_values("heads", ignore_index=True, kind="stable")


def patches(data: xr.Dataset, cutoff: float | None, times: float) -> pd.DataFrame:
    """See `Measurement.patches`."""
    norms, received = _vision(data)
    prefix, suffix = record_of(data).get("vision_prefix", []), record_of(data).get("vision_suffix", {})
    behind = sum(suffix.values())
    artefacts = metrics.artefact_patches(norms, len(prefix), suffix=behind, cutoff=cutoff, times=times)
    return metrics.patch_table(norms, received, prefix, artefacts, suffix)


def _view(data: xr.Dataset, epsilon: float) -> TokenView:
    if "attention_received" not in data or "token_id" not in data.coords:
        raise InputError("this measurement has no attention received per token id: it was not observed")
    metrics.check_epsilon(epsilon)
    view = TokenView(data, epsilon)
    if view.stack in ("vision", "audio"):
        raise InputError(f"the {view.stack} stack has no token ids")
    return view


def _texts(data: xr.Dataset) -> dict[int, str]:
    return TokenTexts.of(record_of(data)).alone()


def _vision(data: xr.Dataset) -> tuple[np.ndarray, np.ndarray | None]:
    """Norms at the last depth, attention received."""
    if "hidden_norm" not in data or "vision" not in data["depth_stack"].values:
        raise InputError("this measurement has no norms of a vision stack (observer HiddenNorms)")
    norms = data["hidden_norm"].values[:, data["depth_stack"].values == "vision"][:, -1]
    norms = norms[:, ~np.isnan(norms).all(0)]
    received = None
    if "attention_received" in data:
        received = data["attention_received"].values[:, data["stack"].values == "vision"][..., : norms.shape[1]]
    return norms, received
