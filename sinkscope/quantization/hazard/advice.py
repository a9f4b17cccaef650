"""What to protect and why, from the numbers at the sites."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from sinkscope.quantization.hazard.statistics import CHANNEL

WIDE = 1.0  # bits that protected tokens must take from the others' range to be mentioned
COMMON = 0.1  # a channel that stands out in a smaller share of the tokens is a matter of these tokens
LOST_SHARE = 0.01  # share of attention weights that a cast must zero to be mentioned
LOST_MASS = 1e-3  # of a query's attention
SHOWN = 4  # places named per line


def advice_of(
    table: pd.DataFrame, casts: pd.DataFrame, tokens: pd.DataFrame, ranked: pd.DataFrame, record: Mapping[str, Any]
) -> pd.DataFrame:
    """One row per finding: `what` to do, `where`, and `why`."""
    left = record["tokens_left"]
    rows = [*_tokens(table, tokens, ranked, record), *_others(table, left), *_channels(table, left), *_casts(casts)]
    return pd.DataFrame(rows, columns=["what", "where", "why"])


def _tokens(
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


def _casts(casts: pd.DataFrame) -> list[tuple[str, str, str]]:
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
