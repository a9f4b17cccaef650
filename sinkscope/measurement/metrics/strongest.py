"""Where the sink is strongest, and where it can be looked for at all: the one rule of the whole project."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int

DIGITS = 6  # behind the point; equal numbers may differ by what fp32, or adding up in another order, makes of them


def comparable(
    visible: Float[np.ndarray, "*rows position"], most: Int[np.ndarray, "*rows"] | Float[np.ndarray, "*rows"]
) -> Bool[np.ndarray, "*rows position"]:
    """True at positions that more than half as many queries see as see the key that is seen by `most`.

    `visible`: how many queries see each, NaN behind the last token. In a plain causal layer of T tokens these are the
    k < T / 2, in a bidirectional one all, under a window all but the last half of one. The last positions average over
    a few queries, and the very last is one token's attention to itself, so that an exceeded threshold says nothing
    there.
    """
    return visible > most[..., None] / 2


def strongest(rates: Float[np.ndarray, "position"], mass: Float[np.ndarray, "position"]) -> int | None:
    """Index of the highest sink rate; at equal rates, of the largest share of all attention; then of the first.

    `rates` in percent, NaN at positions that are no candidates, as `comparable` has them; `mass`: mean over queries of
    the weight on the position, those that cannot see it counting as 0. None where there is no candidate: then nothing
    can be called the strongest.
    """
    known = ~np.isnan(rates)
    if not known.any():
        return None
    best = np.where(known, rates, -np.inf).round(DIGITS)
    return int(np.where(best == best.max(), np.nan_to_num(mass).round(DIGITS), -np.inf).argmax())
