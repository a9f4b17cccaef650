"""Finds hazards in one pass over the linear maps and one over attention, and derives what to protect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from sinkscope.errors import InputError
from sinkscope.hooks import Stream, checked_inputs, family, unwrapped
from sinkscope.measurement import Measurement, find_tokens, measure
from sinkscope.measurement.peaks import BATCH, Site, cached_sites, check_whole, read_sites, sites
from sinkscope.model.columns import TokenColumns, columns_of
from sinkscope.quantization.hazard.result import Hazards
from sinkscope.quantization.hazard.underflow import Fp8Underflow
from sinkscope.quantization.protected import Protect, among, protect_of
from sinkscope.registry import renamed_argument
from sinkscope.sinks import Choice, Measured, NothingChosenError, Outliers, Tokens, parts_of

BINS_PER_OCTAVE = 64  # quantiles are accurate to 1.1 %
LOWEST, HIGHEST = -40, 24  # powers of two between which the histogram has bins
QUANTILE = 0.999
CHANNEL = 10.0  # medians of the channels from which a channel stands out
WIDE = 1.0  # bits that protected tokens must take from the others' range to be mentioned
COMMON = 0.1  # a channel that stands out in a smaller share of the tokens belongs to these tokens
LOST_SHARE = 0.01  # share of attention weights that a cast must zero to be mentioned
LOST_MASS = 1e-3  # of a query's attention
SHOWN = 4  # places named per line


@dataclass
class SiteNumbers:
    """Magnitudes |x| at one site: the largest of each token, a histogram of all entries, the largest of each channel.

    `real` and `protected` (row, position) are those of the inputs; real, unprotected tokens are *left*.
    """

    real: Bool[Tensor, "row position"]
    protected: Bool[Tensor, "row position"]
    peaks: Float[Tensor, "row position"] = field(init=False)
    widest: Int[Tensor, "row position"] = field(init=False)
    channels: Float[Tensor, " channel"] | None = None

    def __post_init__(self) -> None:
        self.peaks = torch.full(self.real.shape, torch.nan)
        self.widest = torch.full(self.real.shape, -1)  # the channel of each token's largest entry
        self._counts = torch.zeros(2, (HIGHEST - LOWEST) * BINS_PER_OCTAVE, dtype=torch.int64)

    @property
    def left(self) -> Bool[Tensor, "row position"]:
        return self.real & ~self.protected

    def read(self, x: Float[Tensor, "row position width"], start: int) -> None:
        """Add the tokens of rows from `start` on."""
        rows, size = slice(start, start + len(x)), x.abs().float().cpu()
        peak, channel = size.max(-1)
        larger = ~(self.peaks[rows] >= peak)  # also True for NaN, where nothing was read yet
        self.peaks[rows] = torch.where(larger, peak, self.peaks[rows])
        self.widest[rows] = torch.where(larger, channel, self.widest[rows])
        for index, mask in enumerate((self.left[rows], (self.real & self.protected)[rows])):
            self._counts[index] += _histogram(size[mask])
        others = size[self.left[rows]]
        if len(others):
            largest = others.amax(0)
            self.channels = largest if self.channels is None else torch.maximum(self.channels, largest)

    def largest(self, among: Bool[Tensor, "row position"]) -> float:
        """The largest entry of these tokens; 0 if there is none."""
        return float(self.peaks[among].max()) if bool(among.any()) else 0.0

    def over_median(self, among: Bool[Tensor, "row position"]) -> float:
        """The largest of these tokens in medians of the tokens that are left."""
        return self.largest(among) / max(float(self.peaks[self.left].median()), 1e-30)

    def over_quantile(self, left: bool) -> float:
        """The largest entry over the 99.9th percentile of all entries, of real tokens or of those that are left."""
        counts = self._counts[0] if left else self._counts.sum(0)
        edge = int((counts.cumsum(0) >= QUANTILE * counts.sum()).int().argmax())
        middle = LOWEST + (edge + 0.5) / BINS_PER_OCTAVE
        return self.largest(self.left if left else self.real) / 2**middle

    def channel(self) -> tuple[float, float]:
        """The largest channel in medians of the channels, and the share of tokens in which it stands out.

        Both over the tokens that are left. It stands out in a token if it is the token's largest channel and at least
        10 medians of the channels. If it does so in a few tokens only, the outliers are these tokens rather than the
        channel.
        """
        if self.channels is None:
            return float("nan"), float("nan")
        median = self.channels.median().clamp(min=1e-30)
        top = int(self.channels.argmax())
        out = (self.widest == top) & (self.peaks >= CHANNEL * median) & self.left
        return float(self.channels[top] / median), float(out.sum() / self.left.sum())

    def set_by(self, among: Bool[Tensor, "row position"]) -> tuple[int, int]:
        """Row and column of the token among these that sets the range."""
        size = self.peaks.masked_fill(~among, -1).nan_to_num(-1)
        return divmod(int(size.argmax()), size.shape[1])


def bits_lost(with_all: float, without: float) -> float:
    """log₂ of the factor by which some tokens widen a range: the bits that the others lose."""
    return float(np.log2(max(with_all, 1e-30) / max(without, 1e-30)))


def _histogram(size: Tensor) -> Tensor:
    # Logarithmic bins, the same for all batches: counts add up, and no entries are kept for the quantile.
    index = ((size.clamp(min=2.0**LOWEST).log2() - LOWEST) * BINS_PER_OCTAVE).long()
    bins = (HIGHEST - LOWEST) * BINS_PER_OCTAVE
    return torch.bincount(index.clamp(0, bins - 1).flatten(), minlength=bins)


@renamed_argument("spared", "protect")
def hazards(model: nn.Module, inputs: Any, protect: Protect | str | None = None, *, batch_size: int = BATCH) -> Hazards:
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
    chosen = protect_of(protect) or Measured(by="row") + Outliers()
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
    parts = parts_of(protect) if isinstance(protect, Choice) else (protect,)
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


def advice_of(
    table: pd.DataFrame, casts: pd.DataFrame, tokens: pd.DataFrame, ranked: pd.DataFrame, record: Mapping[str, Any]
) -> pd.DataFrame:
    """One row per finding: `what` to do, `where`, and `why`.

    Args:
        table, casts, tokens, ranked, record: Fields of `Hazards`, of which `table` is `sites`.
    """
    left = record["tokens_left"]
    rows = [
        *_token_advice(table, tokens, ranked, record),
        *_others(table, left),
        *_channels(table, left),
        *_cast_advice(casts),
    ]
    return pd.DataFrame(rows, columns=["what", "where", "why"])


def _token_advice(
    table: pd.DataFrame, tokens: pd.DataFrame, ranked: pd.DataFrame, record: Mapping[str, Any]
) -> list[tuple[str, str, str]]:
    rows = [(f"protect no token as {words}", "everywhere", why) for words, why in record["nothing_chosen"].items()]
    if tokens.empty:
        return rows
    wide = table[table["bits_lost"] >= WIDE].sort_values("bits_lost", ascending=False)
    named = _positions(tokens)
    if wide.empty:
        worst = table.loc[table["bits_lost"].idxmax()]
        why = f"they widen its range by at most {2 ** worst['bits_lost']:.1f} ×, at {_place(worst)}"
        return [
            (f"protecting {named} gains nothing in activations with a shared range", "every linear map", why),
            *rows,
        ]
    worst = wide.iloc[0]
    why = (
        f"there they are {worst['max_median']:.0f} medians of the tokens, all others at most "
        f"{worst['max_median_without']:.1f}: a shared range loses {worst['bits_lost']:.1f} bits to them"
    )
    if len(ranked) > 1:
        why += "; " + ", ".join(
            f"{row.protected} ({row.tokens_a_row:.1f} tokens a text) alone recovers {row.bits_back:.2f} bits"
            for row in ranked.itertuples()
        )
    return [(f"protect {named}, or give each token a range of its own", _places(wide), why), *rows]


def _others(table: pd.DataFrame, left: int) -> list[tuple[str, str, str]]:
    """Sites whose range an unprotected token sets, once the protected tokens are protected."""
    wide = table[(table["max_median_without"] >= 2 ** (WIDE + 2)) & ~_by_channel(table)]
    if wide.empty:
        return []
    worst = wide.sort_values("max_median_without", ascending=False).iloc[0]
    why = (
        f"of the {left} tokens that are left, one at position {worst['then_by_position']} is "
        f"{worst['max_median_without']:.0f} medians there: a lower ratio (outliers:8) protects it"
    )
    return [("look at other tokens as well", _places(wide), why)]


def _by_channel(table: pd.DataFrame) -> pd.Series:
    """Sites at which a channel stands out over the tokens that are left, not only in a few of them."""
    return (table["channel_ratio"] >= CHANNEL) & (table["channel_share"] >= COMMON)


def _channels(table: pd.DataFrame, left: int) -> list[tuple[str, str, str]]:
    wide = table[_by_channel(table)].sort_values("channel_ratio", ascending=False)
    if wide.empty:
        return []
    worst = wide.iloc[0]
    why = (
        f"one channel is {worst['channel_ratio']:.0f} medians of the channels at {_place(worst)}, and stands out in "
        f"{100 * worst['channel_share']:.0f} % of the {left} tokens left: protecting tokens does not change that"
    )
    return [("smooth or rotate channels, or keep the outlying ones", _places(wide), why)]


def _cast_advice(casts: pd.DataFrame) -> list[tuple[str, str, str]]:
    if casts.empty:
        return []
    rows = []
    for column, scaled in (("forward", True), ("unscaled", False)):
        mass = "mass" if scaled else "mass_unscaled"
        lossy = casts[(casts[column] >= LOST_SHARE) & (casts[mass] >= LOST_MASS)]
        if lossy.empty:
            continue
        worst = lossy.sort_values(mass, ascending=False).iloc[0]
        what = "walk over keys in reverse" if scaled else "scale weights by 256 before they are cast"
        why = (
            f"cast to e4m3, {100 * worst[column]:.0f} % of the weights of layer {worst['layer']:.0f} become 0, "
            f"{100 * worst[mass]:.1f} % of its attention"
        )
        layers = ", ".join(f"{layer:.0f}" for layer in lossy["layer"])
        rows.append((f"in 8-bit attention, {what}", f"attention of layer{'s' * (len(lossy) > 1)} {layers}", why))
    return rows


def _positions(tokens: pd.DataFrame) -> str:
    always = tokens[tokens["share"] >= 0.5]
    if always.empty:
        return f"the chosen tokens (elsewhere in each row; {len(tokens)} places)"
    return "the token" + "s" * (len(always) > 1) + " at " + ", ".join(str(position) for position in always["position"])


def _place(row: pd.Series) -> str:
    return f"block {row['block']}, {row['site']}"


def _places(rows: pd.DataFrame) -> str:
    named = "; ".join(_place(row) for _, row in rows.head(SHOWN).iterrows())
    return named + (f"; {len(rows) - SHOWN} more" if len(rows) > SHOWN else "")
