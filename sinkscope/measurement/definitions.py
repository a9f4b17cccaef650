"""Every published definition of a sink, applied to the same measurement."""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Bool, Int, Shaped

from sinkscope.measurement import metrics
from sinkscope.measurement.definition_rules import DEFINITIONS, Answers
from sinkscope.measurement.selection import TokenView


def definition_table(data: xr.Dataset, epsilon: float) -> pd.DataFrame:
    """See `Measurement.definitions`."""
    view = TokenView(data, epsilon)
    answers = _all_answers(view)
    reference = next(iter(answers.values()), None)
    rows = []
    for definition in DEFINITIONS:
        row: dict[str, str | float] = {
            "definition": definition.name,
            "source": definition.source,
            "rule": definition.rule.format(epsilon=f"{epsilon:g}"),
        }
        if (found := answers.get(definition.name)) is not None and reference is not None:
            numbers = _summary(found, view.counted, view.positions) | {"agreement": jaccard(reference, found)}
            rows.append(row | numbers | {"note": _doubt(found, view.counted)})
        else:
            rows.append(row | {"note": f"not observed: {', '.join(definition.missing(data))}"})
    columns = ["definition", "source", "rule", "sinks", "position_0", "elsewhere", "elsewhere_share", "agreement"]
    return pd.DataFrame(rows, columns=[*columns, "note"]).astype({"elsewhere": "Int64"})


def agreement(data: xr.Dataset, epsilon: float) -> pd.DataFrame:
    """See `Measurement.agreement`."""
    answers = _all_answers(TokenView(data, epsilon))
    values = [[jaccard(one, other) for other in answers.values()] for one in answers.values()]
    return pd.DataFrame(values, index=list(answers), columns=list(answers))


def jaccard(one: Shaped[np.ndarray, "sample position"], other: Shaped[np.ndarray, "sample position"]) -> float:
    """|A ∩ B| / |A ∪ B| over the (sample, position) that both know; NaN where there is none.

    1 where both are empty, since they agree that there is no sink.
    """
    known = ~(np.isnan(one) | np.isnan(other))
    if not known.any():
        return float("nan")
    union = (known & ((one == 1) | (other == 1))).sum()
    return float((known & (one == 1) & (other == 1)).sum() / union) if union else 1.0


def _all_answers(view: TokenView) -> dict[str, Answers]:
    """What each definition says of the places that are compared; NaN at all others."""
    present = [definition for definition in DEFINITIONS if not definition.missing(view.data)]
    return {definition.name: np.where(view.counted, definition.answers(view), np.nan) for definition in present}


def _summary(
    answers: Answers, counted: Bool[np.ndarray, "sample position"], positions: Int[np.ndarray, "position"]
) -> dict[str, float]:
    """Sinks per sample; percent of samples in which position 0 is one; the most frequent other position.

    Samples are those that are known: all of whose places are, but for those that are known in no sample at all.
    """
    known = ~np.isnan(answers)
    whole = (known | ~counted | ~known.any(0)).all(1) & known.any(1)
    shares = 100 * metrics.nanmean(answers, 0)
    found = {
        "sinks": float((answers[whole] == 1).sum(1).mean()) if whole.any() else float("nan"),
        "position_0": float(shares[positions == 0][0]) if 0 in positions else float("nan"),
    }
    others = np.where(positions == 0, 0, (answers == 1).sum(0))
    best = int(others.argmax())
    if others[best] > 0:
        found |= {"elsewhere": int(positions[best]), "elsewhere_share": float(shares[best])}
    return found


def _doubt(answers: Answers, counted: Bool[np.ndarray, "sample position"]) -> str:
    """In how many samples something is not known, and why that is."""
    unknown = int((counted & np.isnan(answers)).any(1).sum())
    return f"not known in {unknown} of {len(answers)} samples: NaN or infinite, or not kept" if unknown else ""
