"""A measurement by token: which tokens become sinks, of which kind, and which first tokens do not."""

from __future__ import annotations

import numpy as np
import pandas as pd

from sinkscope.errors import InputError
from sinkscope.probes import metrics
from sinkscope.probes.measurements.definitions import TokenView
from sinkscope.probes.measurements.measurement import Measurement


def sink_tokens(measurement: Measurement, epsilon: float, least: float) -> pd.DataFrame:
    """See `Measurement.sink_tokens`."""
    view = _view(measurement, epsilon)
    received, ids = view.per_head("attention_received"), measurement.data["token_id"].values
    return metrics.sinks_by_token(received, ids, view.counted, _texts(measurement), epsilon, least=least)


def token_kinds(measurement: Measurement, epsilon: float) -> pd.DataFrame:
    """See `Measurement.token_kinds`."""
    view, texts = _view(measurement, epsilon), _texts(measurement)
    if not texts:
        raise InputError("kinds of tokens need their texts: measure with tokenizer=...")
    special = measurement.record.get("special_tokens", [])
    ids = measurement.data["token_id"].values
    return metrics.sinks_by_kind(view.per_head("attention_received"), ids, view.counted, texts, special, epsilon)


def first_tokens(measurement: Measurement, epsilon: float) -> pd.DataFrame:
    """See `Measurement.first_tokens`."""
    view, texts = _view(measurement, epsilon), _texts(measurement)
    if 0 not in view.positions:
        raise InputError("position 0 was not measured")
    first = int(np.flatnonzero(view.positions == 0)[0])
    ids = measurement.data["token_id"].values[:, first]
    rates = metrics.token_rates(view.per_head("attention_received"), epsilon)[:, first]
    table = pd.DataFrame({"token": [texts.get(int(token), "") for token in ids], "id": ids, "heads": rates})
    if "hidden_norm" in measurement.data:
        with metrics.quiet():
            table["hidden_norm_ratio"] = np.nanmax(metrics.first_over_rest(view.per_depth("hidden_norm")), 1)
    table["becomes_sink"] = rates > 0.5 * np.nanmedian(rates)
    return table.sort_values("heads", ignore_index=True, kind="stable")


def _view(measurement: Measurement, epsilon: float) -> TokenView:
    if "attention_received" not in measurement.data or "token_id" not in measurement.data.coords:
        raise InputError("this measurement has no attention received per token id: it was not observed")
    metrics.check_epsilon(epsilon)
    view = TokenView(measurement, epsilon)
    if view.stack in ("vision", "audio"):
        raise InputError(f"the {view.stack} stack has no token ids")
    return view


def _texts(measurement: Measurement) -> dict[int, str]:
    return {int(token): text for token, text in measurement.record.get("token_text", {}).items()}
