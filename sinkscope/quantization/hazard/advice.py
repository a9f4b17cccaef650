"""What to spare, and why, from the numbers at the sites."""

from __future__ import annotations

import pandas as pd

WIDE = 1.0  # bits that spared tokens take from the others' range, from which on sparing them is worth a line
CHANNEL = 10.0  # medians of the channels, from which on one stands out
LOST_SHARE = 0.01  # of attention weights, from which on a cast is worth a line
LOST_MASS = 1e-3  # of a query's attention
SHOWN = 4  # places named in a line


def advice_of(table: pd.DataFrame, casts: pd.DataFrame, tokens: pd.DataFrame, said: str) -> pd.DataFrame:
    """A row per finding: `what` to do, `where`, and `why`."""
    rows = [*_tokens(table, tokens, said), *_others(table), *_channels(table), *_casts(casts)]
    return pd.DataFrame(rows, columns=["what", "where", "why"])


def _tokens(table: pd.DataFrame, tokens: pd.DataFrame, said: str) -> list[tuple[str, str, str]]:
    if tokens.empty:
        return [("spare no token for its attention", "everywhere", said)]
    wide = table[table["bits_lost"] >= WIDE].sort_values("bits_lost", ascending=False)
    named = _positions(tokens)
    if wide.empty:
        worst = table.loc[table["bits_lost"].idxmax()]
        why = f"its range is no wider anywhere for them than {2 ** worst['bits_lost']:.1f} ×, at {_place(worst)}"
        return [(f"sparing {named} buys nothing in activations with a shared range", "every linear map", why)]
    worst = wide.iloc[0]
    why = (
        f"there they are {worst['max_median']:.0f} medians of the tokens, all others at most "
        f"{worst['max_median_without']:.1f}: a shared range loses {worst['bits_lost']:.1f} bits to them"
    )
    return [(f"spare {named}, or give each token a range of its own", _places(wide), why)]


def _others(table: pd.DataFrame) -> list[tuple[str, str, str]]:
    """Sites whose range is set by a token that is not spared."""
    wide = table[(table["max_median_without"] >= 2 ** (WIDE + 2)) & ~table["set_by_spared"]]
    if wide.empty:
        return []
    worst = wide.sort_values("max_median_without", ascending=False).iloc[0]
    why = (
        f"position {worst['set_by_position']} is {worst['max_median_without']:.0f} medians of the tokens there, and is "
        "none of the spared ones: OutlyingTokens finds such tokens"
    )
    return [("look at other tokens as well", _places(wide), why)]


def _channels(table: pd.DataFrame) -> list[tuple[str, str, str]]:
    wide = table[table["channel_ratio"] >= CHANNEL].sort_values("channel_ratio", ascending=False)
    if wide.empty:
        return []
    worst = wide.iloc[0]
    why = (
        f"one channel is {worst['channel_ratio']:.0f} medians of the channels in all other tokens at {_place(worst)}: "
        "no spared token changes that"
    )
    return [("smooth or rotate channels, or keep the outlying ones", _places(wide), why)]


def _casts(casts: pd.DataFrame) -> list[tuple[str, str, str]]:
    if casts.empty:
        return []
    found = []
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
        found.append((f"in 8-bit attention, {what}", f"attention of layer{'s' * (len(lossy) > 1)} {layers}", why))
    return found


def _positions(tokens: pd.DataFrame) -> str:
    always = tokens[tokens["share"] >= 0.5]
    if always.empty:
        return f"the measured tokens (elsewhere in each row; {len(tokens)} places)"
    return "the token" + "s" * (len(always) > 1) + " at " + ", ".join(str(place) for place in always["position"])


def _place(row: pd.Series) -> str:
    return f"block {row['block']}, {row['site']}"


def _places(rows: pd.DataFrame) -> str:
    named = "; ".join(_place(row) for _, row in rows.head(SHOWN).iterrows())
    return named + (f"; {len(rows) - SHOWN} more" if len(rows) > SHOWN else "")
