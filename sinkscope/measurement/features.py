"""The strongest keys of each head as features of a text, for probes."""

from __future__ import annotations

import numpy as np
import xarray as xr

from sinkscope.errors import InputError

NAMES = {"attention": "strongest_attention", "key": "strongest_position", "value_norm": "strongest_value_norm"}


def features(data: xr.Dataset, k: int, *, per_token: bool) -> xr.Dataset:
    """See `Measurement.features`."""
    if NAMES["attention"] not in data:
        raise InputError(
            "no strongest keys were observed: with sinkscope.observe(model, StrongestKeys()) around model.generate()"
        )
    count = data.sizes["strongest"]
    if k not in range(1, count + 1):
        raise InputError(f"k = {k}: {count} keys of each head were kept (StrongestKeys(count={count}))")
    arrays = {name: data[long].isel(strongest=slice(k)) for name, long in NAMES.items()}
    strongest = xr.Dataset({name: array.transpose("sample", ..., "strongest") for name, array in arrays.items()})
    generated = strongest["attention"].notnull().any(("layer", "head", "strongest"))  # (sample, position)
    if per_token:
        return strongest.isel(position=np.flatnonzero(generated.any("sample").values))
    last = generated.cumsum("position").argmax("position")  # the newest generated token of each sample
    return strongest.isel(position=last).drop_vars(["position", "token_id"], errors="ignore")
