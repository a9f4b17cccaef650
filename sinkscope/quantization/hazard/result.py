"""Hazards as tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from sinkscope.errors import InputError

TABLES = ("advice", "sites", "casts", "tokens", "ranked")


@dataclass(frozen=True, eq=False)
class Hazards:
    """What makes quantizing a model costly, and what to protect because of it.

    Attributes:
        sites: One row per place where a range is needed: `block`, `site`, `path`; `max_median`, the largest token in
            medians of the unprotected tokens, and `max_p999`, the largest entry over the 99.9th percentile (to
            1.1 %), each over all tokens and `_without` the protected ones; `bits_lost`, log₂ of how much the protected
            tokens widen the range; `channel_ratio`, the largest channel in medians of the channels over the unprotected
            tokens, and `channel_share`, the share of these in which it stands out; the token that sets the range
            (`set_by_position`, `set_by_token`, `set_by_protected`), and the one that sets it after protection
            (`then_by_position`, `then_by_token`).
        casts: One row per attention layer: the shares of its weights that a cast to e4m3 zeroes (`Fp8Underflow`), and
            the attention lost.
        advice: What to protect, where and why.
        tokens: The protected tokens by position and id, with the share of rows that contain them.
        ranked: The parts of the choice, by the bits that each recovers alone.
        record: Model and inputs.
    """

    sites: pd.DataFrame
    casts: pd.DataFrame
    advice: pd.DataFrame
    tokens: pd.DataFrame
    ranked: pd.DataFrame
    record: dict[str, Any]

    def worst(self, count: int = 8) -> pd.DataFrame:
        """The sites whose range the protected tokens widen most."""
        return self.sites.sort_values(["bits_lost", "max_median"], ascending=False).head(count)

    def to_json(self) -> dict[str, Any]:
        """All tables and the record, JSON-able."""
        tables: dict[str, Any] = {}
        for name in TABLES:
            table: pd.DataFrame = getattr(self, name)
            tables[name] = json.loads(table.to_json(orient="records", double_precision=10))
        return {**tables, **self.record}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Hazards:
        """Back from `to_json`. Raises `InputError` for anything else."""
        if not isinstance(data, Mapping) or not all(
            isinstance(data.get(name), list) for name in TABLES if name != "ranked"
        ):
            raise InputError(f"not hazards: expected the tables {', '.join(TABLES)}")
        tables = {name: pd.DataFrame(data.get(name, [])) for name in TABLES}  # older files have no ranking
        if tables["sites"].empty or tables["advice"].empty:
            raise InputError("not hazards: the tables of sites and advice are empty")
        return cls(**tables, record={name: value for name, value in data.items() if name not in TABLES})
