"""Which tokens are sinks: by position, by token, by kind of token (Sun et al. 2024; Yu et al. 2024)."""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Int

from sinkscope.sinks import exceeds
from sinkscope.statistics import nanmean

if TYPE_CHECKING:
    import pandas as pd

MARKS = "▁Ġ Ċ"  # how tokenizers write spaces and line ends in the texts of tokens
BYTES = re.compile("(<0x[0-9A-F]{2}>)+")  # parts of a character that is split over several tokens


def token_rates(
    received: Float[np.ndarray, "sample layer head position"], epsilon: float
) -> Float[np.ndarray, "sample position"]:
    """Percent of (layer, head) pairs in which a token receives more than epsilon; each layer counts once."""
    return 100 * nanmean(nanmean(exceeds(received, epsilon), 2), 1)


def sinks_by_token(
    received: Float[np.ndarray, "sample layer head position"],
    ids: Int[np.ndarray, "sample position"],
    counted: Bool[np.ndarray, "sample position"],
    texts: Mapping[int, str],
    epsilon: float,
    *,
    least: float = 0.0,
) -> pd.DataFrame:
    """One row per token id that is a sink somewhere: how often, in how many heads, and where.

    A token is a sink where the percentage of (layer, head) pairs in which it receives more than `epsilon` exceeds
    `least`. Columns: token (its text), id, sinks (occurrences that are one), occurrences, share (percent of them),
    heads (mean percentage of pairs, over the sinks), alpha (largest attention received in a head), first, last
    (positions). Sorted by sinks. Source: Sun et al. 2024; Yu et al. 2024.

    Args:
        received: Attention received, 0 to 1.
        ids: Token ids; −1 where there is none.
        counted: The places that are used.
        texts: Text of each id; ids without one are named "".
        epsilon: Share of attention, 0 to 1.
        least: Percentage of pairs, 0 to 100.
    """
    import pandas as pd

    rates, strongest = token_rates(received, epsilon), _strongest(received)
    known = counted & (ids >= 0) & ~np.isnan(rates)
    _, position = np.nonzero(known)
    occurrences = pd.DataFrame(
        {"id": ids[known], "position": position, "heads": rates[known], "alpha": strongest[known]}
    )
    occurrences["sink"] = occurrences["heads"] > least
    rows = []
    for token, group in occurrences.groupby("id"):
        sinks = group[group["sink"]]
        if len(sinks):
            rows.append(
                {
                    "token": texts.get(int(token), ""),
                    "id": int(token),
                    "sinks": len(sinks),
                    "occurrences": len(group),
                    "share": 100 * len(sinks) / len(group),
                    "heads": float(sinks["heads"].mean()),
                    "alpha": float(sinks["alpha"].max()),
                    "first": int(sinks["position"].min()),
                    "last": int(sinks["position"].max()),
                }
            )
    columns = ["token", "id", "sinks", "occurrences", "share", "heads", "alpha", "first", "last"]
    return pd.DataFrame(rows, columns=columns).sort_values(["sinks", "heads"], ascending=False, ignore_index=True)


def token_kind(text: str, special: bool) -> str:
    """A special token by its text ([CLS], [SEP], <s> …), punctuation, line end, bytes of a character, or word."""
    if special:
        return text
    bare = text.strip(MARKS)
    if not bare:
        return "line end" if "Ċ" in text or "\n" in text else "space"
    if BYTES.fullmatch(bare):
        return "bytes"
    if all(letter in string.punctuation or unicodedata.category(letter).startswith("P") for letter in bare):
        return "punctuation"
    return "word"


def sinks_by_kind(
    received: Float[np.ndarray, "sample layer head position"],
    ids: Int[np.ndarray, "sample position"],
    counted: Bool[np.ndarray, "sample position"],
    texts: Mapping[int, str],
    special: Collection[int],
    epsilon: float,
) -> pd.DataFrame:
    """One row per kind of token: each special token, punctuation, words.

    Columns: kind, occurrences, alpha (mean attention received, over samples, layers and heads), sink_rate (percent of
    (token, layer, head) in which it exceeds `epsilon`), largest (percent of (layer, head) pairs for the occurrence with
    most). Source: for bidirectional encoders the denominator is T for every key. Other arguments as in
    `sinks_by_token`.

    Args:
        special: Ids of special tokens.
    """
    import pandas as pd

    rates, means = token_rates(received, epsilon), nanmean(nanmean(received, 2), 1)
    known = counted & (ids >= 0) & ~np.isnan(rates)
    kinds = [token_kind(texts.get(int(token), ""), int(token) in special) for token in ids[known]]
    frame = pd.DataFrame({"kind": kinds, "alpha": means[known], "sink_rate": rates[known]})
    grouped = frame.groupby("kind", sort=False)
    table = grouped.agg(
        occurrences=("alpha", "size"),
        alpha=("alpha", "mean"),
        largest=("sink_rate", "max"),
        sink_rate=("sink_rate", "mean"),
    ).reset_index()
    return table.sort_values("alpha", ascending=False, ignore_index=True)[
        ["kind", "occurrences", "alpha", "sink_rate", "largest"]
    ]


def _strongest(received: Float[np.ndarray, "sample layer head position"]) -> Float[np.ndarray, "sample position"]:
    """Largest attention received in any layer and head; −inf where nothing was measured."""
    return np.where(np.isnan(received), -np.inf, received).max((1, 2))
