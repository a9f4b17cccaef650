"""Looks for hazards: one pass over the linear maps, one over attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from sinkscope.errors import InputError
from sinkscope.hooks import Stream, checked_inputs, family, unwrapped
from sinkscope.measurement import Measurement, find_tokens, measure
from sinkscope.measurement.peaks import BATCH, Site, cached_sites, check_whole, read_sites, sites
from sinkscope.model.columns import TokenColumns, columns_of
from sinkscope.quantization.hazard.advice import advice_of
from sinkscope.quantization.hazard.result import Hazards
from sinkscope.quantization.hazard.statistics import SiteNumbers, bits_lost
from sinkscope.quantization.hazard.underflow import Fp8Underflow
from sinkscope.quantization.protected import Protect, among
from sinkscope.registry import renamed_argument
from sinkscope.sinks import Measured, NothingChosenError, Outliers, Sum, Tokens


@renamed_argument("spared", "protect")
def hazards(model: nn.Module, inputs: Any, protect: Protect | None = None, *, batch_size: int = BATCH) -> Hazards:
    """Where a few tokens or channels set a range, and what 8-bit attention weights would lose.

    For the input of each linear map, and for cached keys and values: the largest entry in medians of the tokens, and
    relative to the 99.9th percentile of the entries, with and without the tokens of `protect`; how many bits of a
    shared range these tokens take from the others; which token sets the range, before and after they are protected; and
    whether a channel stands out over the other tokens. `protect` defaults to Measured(by="row") + Outliers(), since
    attention sinks and outlying activations may be different tokens. The parts of a sum are ranked by the bits that
    each recovers alone; a part that chooses nothing is named, and the table is made without it. Raises `InputError` as
    `measure` does.
    """
    model = unwrapped(model)
    checked, _ = checked_inputs(model, inputs, batch_size)
    check_whole(checked)
    columns = columns_of(model, checked)
    chosen = Measured(by="row") + Outliers() if protect is None else protect
    masks, nothing = _masks(model, checked, chosen, columns)
    mask = torch.stack([torch.zeros_like(columns.real.cpu()), *masks.values()]).any(0)
    all_sites = [*sites(model), *cached_sites(model)]
    by_site = {site: SiteNumbers(columns.real.cpu(), mask) for site in all_sites}
    unread = read_sites(model, checked, {site: numbers.read for site, numbers in by_site.items()})
    kept = {site: numbers for site, numbers in by_site.items() if site.name not in unread and _has_tokens(numbers)}
    if not kept:
        raise InputError(f"family '{family(model)}': no linear map gets the tokens of a row, so there is no range")
    lines = _merged(kept)
    table = pd.DataFrame([_row(names, site, numbers, columns) for names, site, numbers in lines])
    casts = _casts(model, checked, batch_size)
    record = {
        "model": getattr(getattr(model, "config", None), "name_or_path", "") or type(model).__name__,
        "rows": len(columns.real),
        "tokens_a_row": int(columns.real.sum(-1).max()),
        "tokens_left": int((columns.real.cpu() & ~mask).sum()),
        "protected": "+".join(masks) or "none",
        "nothing_chosen": nothing,
        "unread": list(unread),
    }
    ranked = _ranked(masks, [numbers for _, site, numbers in lines if site.side == "input"])
    tokens = _tokens(mask, columns)
    return Hazards(table, casts, advice_of(table, casts, tokens, ranked, record), tokens, ranked, record)


def _masks(
    model: nn.Module, checked: Mapping[str, Any], protect: Protect, columns: TokenColumns
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Which columns each part of a choice protects, by its words; and why a part protects none."""
    parts = protect.parts if isinstance(protect, Sum) else (protect,)
    masks, nothing = dict[str, Tensor](), dict[str, str]()
    for choice in parts:
        words = choice.chosen_by if isinstance(choice, Tokens) else str(choice)
        try:
            tokens = choice if isinstance(choice, Tokens) else find_tokens(model, checked, choice)
        except NothingChosenError as error:
            nothing[words] = str(error)
        else:
            masks[words] = among(tokens, columns).cpu()
    return masks, nothing


def _ranked(masks: Mapping[str, Tensor], numbers: Sequence[SiteNumbers]) -> pd.DataFrame:
    """One row per part of the choice, by the bits that it recovers, averaged over the inputs of linear maps."""
    rows = []
    for words, mask in masks.items():
        bits = [bits_lost(one.largest(one.real), one.largest(one.real & ~mask)) for one in numbers]
        rows.append((words, float(mask.sum(-1).float().mean()), float(np.mean(bits)), float(np.max(bits))))
    frame = pd.DataFrame(rows, columns=["protected", "tokens_a_row", "bits_back", "most_bits_back"])
    return frame.sort_values("bits_back", ascending=False, ignore_index=True)


def _has_tokens(numbers: SiteNumbers) -> bool:
    return bool(numbers.peaks[numbers.real].isfinite().all())


def _merged(by_site: Mapping[Site, SiteNumbers]) -> list[tuple[str, Site, SiteNumbers]]:
    """One line for the maps of a block that get the same tensor, with their kinds joined."""
    lines: list[tuple[list[str], Site, SiteNumbers]] = []
    for site, numbers in by_site.items():
        like = next(
            (
                line
                for line in reversed(lines[-4:])
                if site.side == "input" and line[1].side == "input" and line[1].block == site.block
                if torch.equal(line[2].peaks[numbers.real], numbers.peaks[numbers.real])
            ),
            None,
        )
        kinds = list(site.kinds)
        if like is None:
            lines.append((kinds, site, numbers))
        else:
            like[0].extend(kind for kind in kinds if kind not in like[0])
    return [(", ".join(kinds), site, numbers) for kinds, site, numbers in lines]


def _row(kinds: str, site: Site, numbers: SiteNumbers, columns: TokenColumns) -> dict[str, Any]:
    def token(row: int, column: int) -> tuple[int, int]:
        return int(columns.order[row, column]), -1 if columns.ids is None else int(columns.ids[row, column])

    first, after = numbers.set_by(numbers.real), numbers.set_by(numbers.left)
    ratio, share = numbers.channel()
    (position, ids), (left_position, left_ids) = token(*first), token(*after)
    return {
        "block": site.block,
        "site": f"into {kinds}" if site.side == "input" else f"cached {kinds}",
        "path": site.path,
        "max_median": numbers.over_median(numbers.real),
        "max_median_without": numbers.over_median(numbers.left),
        "max_p999": numbers.over_quantile(left=False),
        "max_p999_without": numbers.over_quantile(left=True),
        "bits_lost": bits_lost(numbers.largest(numbers.real), numbers.largest(numbers.left)),
        "channel_ratio": ratio,
        "channel_share": share,
        "set_by_position": position,
        "set_by_token": ids,
        "set_by_protected": bool(numbers.protected[first]),
        "then_by_position": left_position,
        "then_by_token": left_ids,
    }


def _casts(model: nn.Module, checked: Mapping[str, Any], batch_size: int) -> pd.DataFrame:
    """One row per attention layer: what a cast of its weights to 8-bit floating point loses, averaged over heads."""
    measurement: Measurement = measure(model, checked, observers=[Fp8Underflow()], batch_size=batch_size)
    data = measurement.data
    if "fp8_underflow" not in data:
        return pd.DataFrame()
    in_stack = data["stack"].values == Stream.of(model).stack
    rows = []
    for layer in np.flatnonzero(in_stack):
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


def _tokens(mask: Tensor, columns: TokenColumns) -> pd.DataFrame:
    """The protected tokens by position and id, with the share of rows that contain them."""
    places = mask.nonzero().tolist()
    ids = columns.ids
    seen = [(int(columns.order[row, at]), -1 if ids is None else int(ids[row, at])) for row, at in places]
    frame = pd.DataFrame(seen, columns=["position", "token"])
    if frame.empty:
        return frame.assign(share=[])
    shares = frame.value_counts().rename("share").reset_index()
    shares["share"] /= len(mask)
    return shares
