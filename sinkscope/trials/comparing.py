"""Several schemes of quantization tried on one model: one table, and which of them to use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from sinkscope.trials.arm import REFERENCE
from sinkscope.trials.trial import Trial

ADVISED = ("free", "small")
PROTECTED = ["protected_bytes_share", "protected_kl"]
COSTS = {"free": "is free", "small": "is small", "costs": "costs", "breaks": "breaks"}


def compared_schemes(trials: Sequence[Trial]) -> pd.DataFrame:
    """One row for each trial of a scheme: its cost, its share of 16-bit bytes, and its best protected arm.

    `bytes_share`: of the matrices for weights, of the cache after the context for caches, of a model in 16 bits; NaN
    where a scheme is only simulated. `protected`: of the arms that beat their random controls the one with the least
    KL, empty if none does; `protected_bytes_share`: its share.
    """
    return pd.DataFrame([_row(trial) for trial in trials])


def _row(trial: Trial) -> dict[str, Any]:
    base, record = str(trial.baseline), trial.record
    cost, best = trial.cost(base), _best(trial)
    return {
        "scheme": base,
        "kl": cost.value,
        "kl_low": cost.low,
        "kl_high": cost.high,
        "word": trial.word(base),
        "bytes_share": _bytes(trial, base),
        "protected": best or "",
        "protected_kl": np.nan if best is None else trial.cost(best).value,
        "protected_word": "" if best is None else trial.word(best),
        "protected_bytes_share": np.nan if best is None else _bytes(trial, best),
        "texts": trial.texts,
        "caches": "stored" in record,
    }


def _best(trial: Trial) -> str | None:
    arms = [arm for arm in trial.named("arm") if trial.controls(arm) and trial.difference(arm).high < 0]
    return min(arms, key=lambda arm: trial.cost(arm).value, default=None)


def _bytes(trial: Trial, arm: str) -> float:
    record = trial.record
    if "weight_bytes" in record:
        return float(record["weight_bytes"] / record["weight_bytes_16"])
    held, full = (float(trial.data["bytes_16"].sel(arm=name)) for name in (arm, REFERENCE))
    return held / full if full else float("nan")


def advice(table: pd.DataFrame) -> str:
    """Which of the schemes to use: the fewest bytes among those that are free or small, protected if that is needed.

    Schemes of caches and of linear maps are advised on separately. The words are those of `trials`.
    """
    sentences = []
    for caches, rows in table.groupby("caches"):
        plain = rows[rows["word"].isin(ADVISED)]
        kept = rows[rows["protected_word"].isin(ADVISED)]
        costs = ", ".join(f"'{row.scheme}' {COSTS.get(row.word, 'cannot be told')}" for row in rows.itertuples())
        what = "the cache" if caches else "the linear maps"
        if len(plain):
            row = plain.sort_values(["bytes_share", "kl"]).iloc[0]
            use = f"use '{row.scheme}'{_share(row.bytes_share)}"
            fewer = kept[kept["protected_bytes_share"] < row.bytes_share].sort_values(PROTECTED)
            if len(fewer):
                row = fewer.iloc[0]
                use += f", or '{row.scheme}' with '{row.protected}' kept{_share(row.protected_bytes_share)}"
        elif len(kept):
            row = kept.sort_values(PROTECTED).iloc[0]
            use = f"use '{row.scheme}' with '{row.protected}' kept{_share(row.protected_bytes_share)}"
        else:
            use = f"leave {what} in 16 bits"
        sentences.append(f"{costs}: {use}.")
    return " ".join(sentences)


def _share(share: float) -> str:
    return "" if np.isnan(share) else f" ({100 * share:.0f} % of the bytes of 16 bits)"
