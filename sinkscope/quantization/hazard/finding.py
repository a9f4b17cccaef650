"""Looking for what quantizers trip over: one pass over the linear maps, one over attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from sinkscope.errors import InputError
from sinkscope.hooks import Stream, checked_inputs, family, unwrapped
from sinkscope.measurements import Measurement
from sinkscope.measuring.peaks import BATCH, Site, cached_sites, check_whole, read_sites, sites
from sinkscope.model.columns import Columns, columns_of
from sinkscope.probes import measure
from sinkscope.quantization.hazard.advice import advice_of
from sinkscope.quantization.hazard.result import Hazards
from sinkscope.quantization.hazard.statistics import SiteNumbers, bits_lost
from sinkscope.quantization.hazard.underflow import Fp8Underflow
from sinkscope.quantization.spared import MeasuredSinks, Spared


def hazards(model: nn.Module, inputs: Any, spared: Spared | None = None, *, batch_size: int = BATCH) -> Hazards:
    """Where a range would be set by a few tokens or channels, and what would be lost in 8-bit attention weights.

    For what goes into every linear map, and for the keys and values that are cached: the largest entry in medians of
    the tokens, and over the 99.9th percentile of the entries, with the tokens of `spared` (default `MeasuredSinks()`)
    and without them; how many bits of a shared range these tokens take from the others; which token sets it; and
    whether a channel stands out over all other tokens. Where no sink is found the table says so and stands without.
    Raises `InputError` as `measure` does.
    """
    model = unwrapped(model)
    given, _ = checked_inputs(model, inputs, batch_size)
    check_whole(given)
    columns = columns_of(model, given)
    mask, said = _spared(model, given, MeasuredSinks() if spared is None else spared, columns)
    places = [*sites(model), *cached_sites(model)]
    found = {place: SiteNumbers(columns.real.cpu(), mask.cpu()) for place in places}
    unread = read_sites(model, given, {place: numbers.read for place, numbers in found.items()})
    kept = {place: numbers for place, numbers in found.items() if place.name not in unread and _has_tokens(numbers)}
    if not kept:
        raise InputError(f"family '{family(model)}': no linear map is given the tokens of a row, so it has no range")
    table = pd.DataFrame([_row(names, place, numbers, columns) for names, place, numbers in _merged(kept)])
    casts = _casts(model, given, batch_size)
    record = {
        "model": getattr(getattr(model, "config", None), "name_or_path", "") or type(model).__name__,
        "rows": len(columns.real),
        "tokens_a_row": int(columns.real.sum(-1).max()),
        "spared": said,
        "unread": list(unread),
    }
    tokens = _tokens(mask.cpu(), columns)
    return Hazards(table, casts, advice_of(table, casts, tokens, said), tokens, record)


def _spared(model: nn.Module, given: Mapping[str, Any], spared: Spared, columns: Columns) -> tuple[Tensor, str]:
    """The mask, and in words how it was found."""
    try:
        return spared.mask(model, given), f"found by {spared.describe()['name']}"
    except InputError as error:
        if not isinstance(spared, MeasuredSinks):
            raise
        return torch.zeros_like(columns.real), str(error)


def _has_tokens(numbers: SiteNumbers) -> bool:
    return bool(numbers.peaks[numbers.real].isfinite().all())


def _merged(found: Mapping[Site, SiteNumbers]) -> list[tuple[str, Site, SiteNumbers]]:
    """One line for maps of a block that are given the same tensor: what they make, joined."""
    lines: list[tuple[list[str], Site, SiteNumbers]] = []
    for place, numbers in found.items():
        like = next(
            (
                line
                for line in reversed(lines[-4:])
                if place.side == "input" and line[1].side == "input" and line[1].block == place.block
                if torch.equal(line[2].peaks[numbers.real], numbers.peaks[numbers.real])
            ),
            None,
        )
        kinds = list(place.kinds)
        if like is None:
            lines.append((kinds, place, numbers))
        else:
            like[0].extend(kind for kind in kinds if kind not in like[0])
    return [(", ".join(kinds), place, numbers) for kinds, place, numbers in lines]


def _row(kinds: str, place: Site, numbers: SiteNumbers, columns: Columns) -> dict[str, Any]:
    row, column = numbers.set_by()
    token = -1 if columns.ids is None else int(columns.ids[row, column])
    return {
        "block": place.block,
        "site": f"into {kinds}" if place.side == "input" else f"cached {kinds}",
        "path": place.path,
        "max_median": numbers.over_median(without=False),
        "max_median_without": numbers.over_median(without=True),
        "max_p999": numbers.over_quantile(without=False),
        "max_p999_without": numbers.over_quantile(without=True),
        "bits_lost": bits_lost(numbers.largest(False), numbers.largest(True)),
        "channel_ratio": numbers.channel_ratio(),
        "set_by_position": int(columns.order[row, column]),
        "set_by_token": token,
        "set_by_spared": bool(numbers.spared[row, column]),
    }


def _casts(model: nn.Module, given: Mapping[str, Any], batch_size: int) -> pd.DataFrame:
    """A row per attention layer: what a cast of its weights to 8-bit floating point loses, mean over heads."""
    found: Measurement = measure(model, given, observers=[Fp8Underflow()], batch_size=batch_size)
    data = found.data
    if "fp8_underflow" not in data:
        return pd.DataFrame()
    own = data["stack"].values == Stream.of(model).stack
    rows = []
    for layer in np.flatnonzero(own):
        share, mass = (
            data[name].isel(layer=layer).mean(("sample", "head")) for name in ("fp8_underflow", "fp8_lost_mass")
        )
        worst = data["fp8_underflow"].isel(layer=layer).sel(cast="forward").mean("sample").max()
        rows.append(
            {
                "layer": int(data["layer_index"].values[layer]),
                "forward": float(share.sel(cast="forward")),
                "reverse": float(share.sel(cast="reverse")),
                "unscaled": float(share.sel(cast="forward, unscaled")),
                "worst_head": float(worst),
                "mass": float(mass.sel(cast="forward")),
                "mass_unscaled": float(mass.sel(cast="forward, unscaled")),
            }
        )
    return pd.DataFrame(rows)


def _tokens(mask: Tensor, columns: Columns) -> pd.DataFrame:
    """The spared tokens, by position and id, with the share of rows in which they are."""
    places = mask.nonzero().tolist()
    ids = columns.ids
    seen = [(int(columns.order[row, at]), -1 if ids is None else int(ids[row, at])) for row, at in places]
    frame = pd.DataFrame(seen, columns=["position", "token"])
    if frame.empty:
        return frame.assign(share=[])
    found = frame.value_counts().rename("share").reset_index()
    found["share"] /= len(mask)
    return found
