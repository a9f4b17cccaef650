"""Looking for what quantizers trip over: one pass over the linear maps, one over attention."""

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
    """Where a range would be set by a few tokens or channels, and what would be lost in 8-bit attention weights.

    For what goes into every linear map, and for the keys and values that are cached: the largest entry in medians of
    the tokens, and over the 99.9th percentile of the entries, with the tokens of `protect` and without them; how many
    bits of a shared range these tokens take from the others; which token sets it, before and after they are protected;
    and whether a channel stands out over the tokens that are left. `protect` is Measured(by="row") + Outliers() unless
    given: attention sinks and outlying activations may be other tokens. The parts of a sum are ranked by the bits
    that each gives back alone. A part that chooses nothing is named, and the table stands without it.
    Raises `InputError` as `measure` does.
    """
    model = unwrapped(model)
    given, _ = checked_inputs(model, inputs, batch_size)
    check_whole(given)
    columns = columns_of(model, given)
    chosen = Measured(by="row") + Outliers() if protect is None else protect
    masks, nothing = _masks(model, given, chosen, columns)
    mask = torch.stack([torch.zeros_like(columns.real.cpu()), *masks.values()]).any(0)
    places = [*sites(model), *cached_sites(model)]
    found = {place: SiteNumbers(columns.real.cpu(), mask) for place in places}
    unread = read_sites(model, given, {place: numbers.read for place, numbers in found.items()})
    kept = {place: numbers for place, numbers in found.items() if place.name not in unread and _has_tokens(numbers)}
    if not kept:
        raise InputError(f"family '{family(model)}': no linear map is given the tokens of a row, so it has no range")
    lines = _merged(kept)
    table = pd.DataFrame([_row(names, place, numbers, columns) for names, place, numbers in lines])
    casts = _casts(model, given, batch_size)
    record = {
        "model": getattr(getattr(model, "config", None), "name_or_path", "") or type(model).__name__,
        "rows": len(columns.real),
        "tokens_a_row": int(columns.real.sum(-1).max()),
        "tokens_left": int((columns.real.cpu() & ~mask).sum()),
        "protected": "+".join(masks) or "none",
        "nothing_chosen": nothing,
        "unread": list(unread),
    }
    ranked = _ranked(masks, [numbers for _, place, numbers in lines if place.side == "input"])
    tokens = _tokens(mask, columns)
    return Hazards(table, casts, advice_of(table, casts, tokens, ranked, record), tokens, ranked, record)


def _masks(
    model: nn.Module, given: Mapping[str, Any], protect: Protect, columns: TokenColumns
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Which columns each part of a choice protects, by its words; and why a part protects none."""
    parts = protect.parts if isinstance(protect, Sum) else (protect,)
    masks, nothing = dict[str, Tensor](), dict[str, str]()
    for part in parts:
        words = part.chosen_by if isinstance(part, Tokens) else str(part)
        try:
            tokens = part if isinstance(part, Tokens) else find_tokens(model, given, part)
        except NothingChosenError as error:
            nothing[words] = str(error)
        else:
            masks[words] = among(tokens, columns).cpu()
    return masks, nothing


def _ranked(masks: Mapping[str, Tensor], numbers: Sequence[SiteNumbers]) -> pd.DataFrame:
    """A row per part of the choice, the one first that gives back most bits, a mean over what goes into linear maps."""
    rows = []
    for words, mask in masks.items():
        bits = [bits_lost(one.largest(one.real), one.largest(one.real & ~mask)) for one in numbers]
        rows.append((words, float(mask.sum(-1).float().mean()), float(np.mean(bits)), float(np.max(bits))))
    frame = pd.DataFrame(rows, columns=["protected", "tokens_a_row", "bits_back", "most_bits_back"])
    return frame.sort_values("bits_back", ascending=False, ignore_index=True)


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


def _row(kinds: str, place: Site, numbers: SiteNumbers, columns: TokenColumns) -> dict[str, Any]:
    def token(row: int, column: int) -> tuple[int, int]:
        return int(columns.order[row, column]), -1 if columns.ids is None else int(columns.ids[row, column])

    first, after = numbers.set_by(numbers.real), numbers.set_by(numbers.left)
    ratio, share = numbers.channel()
    (position, ids), (left_position, left_ids) = token(*first), token(*after)
    return {
        "block": place.block,
        "site": f"into {kinds}" if place.side == "input" else f"cached {kinds}",
        "path": place.path,
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


def _tokens(mask: Tensor, columns: TokenColumns) -> pd.DataFrame:
    """The protected tokens, by position and id, with the share of rows in which they are."""
    places = mask.nonzero().tolist()
    ids = columns.ids
    seen = [(int(columns.order[row, at]), -1 if ids is None else int(ids[row, at])) for row, at in places]
    frame = pd.DataFrame(seen, columns=["position", "token"])
    if frame.empty:
        return frame.assign(share=[])
    found = frame.value_counts().rename("share").reset_index()
    found["share"] /= len(mask)
    return found
