"""What was found of hazards, as tables."""

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
    """What quantizers trip over in a model, and what to protect because of it.

    `sites`: a row per place where a range is needed: `block`, `site`, `path`; `max_median`, the largest token in
    medians of the tokens that are left when the protected ones are not counted, and `max_p999`, the largest entry over
    the 99.9th percentile (within 1.1 %), each with all tokens and `_without` the protected ones; `bits_lost` = log₂ of
    how much wider the range is for the protected ones; `channel_ratio`, the largest channel in medians of the channels
    over the tokens that are left, and `channel_share`, the share of these in which it stands out; which token sets the
    range (`set_by_position`, `set_by_token`, `set_by_protected`), and which then does (`then_by_position`,
    `then_by_token`). `casts`: a row per attention layer, shares of its weights that a cast to e4m3 makes 0
    (`Fp8Underflow`), and the attention lost. `advice`: what to protect, where and why. `tokens`: the protected tokens
    by position and id, with the share of rows in which they are. `ranked`: the parts of the choice, by the bits that
    each gives back alone.
    """

    sites: pd.DataFrame
    casts: pd.DataFrame
    advice: pd.DataFrame
    tokens: pd.DataFrame
    ranked: pd.DataFrame
    record: dict[str, Any]

    def worst(self, count: int = 8) -> pd.DataFrame:
        """The sites whose range is widest for the protected tokens, then for any."""
        return self.sites.sort_values(["bits_lost", "max_median"], ascending=False).head(count)

    def to_json(self) -> dict[str, Any]:
        """All tables and the record, JSON-able."""
        found: dict[str, Any] = {}
        for name in TABLES:
            table: pd.DataFrame = getattr(self, name)
            found[name] = json.loads(table.to_json(orient="records", double_precision=10))
        return {**found, **self.record}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Hazards:
        """Back from `to_json`. Raises `InputError` for anything else."""
        if not isinstance(found, Mapping) or not all(
            isinstance(found.get(name), list) for name in TABLES if name != "ranked"
        ):
            raise InputError(f"no hazards: expected the tables {', '.join(TABLES)}")
        tables = {name: pd.DataFrame(found.get(name, [])) for name in TABLES}  # files of before rank nothing
        if tables["sites"].empty or tables["advice"].empty:
            raise InputError("no hazards: the tables of sites and advice are empty")
        return cls(**tables, record={name: value for name, value in found.items() if name not in TABLES})
