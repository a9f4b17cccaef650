"""Stored results, from which pages are filled."""

from __future__ import annotations

import json
import re
from typing import Any

from tools.pages import ROOT

RESULTS = ROOT / "results"


def read(place: str) -> Any:
    """A file of `results`, such as "real/fold_smollm2"."""
    return json.loads((RESULTS / f"{place}.json").read_text())


def arms(place: str) -> dict[str, dict[str, Any]]:
    """The rows of a stored trial by their names: arms, controls and the unchanged model."""
    return {row["arm"]: row for row in read(place)["result"]["arms"]}


def ends(row: dict[str, Any], name: str, digits: int, times: float = 1) -> tuple[str, str]:
    """The two ends of an interval, as `row` has them under `name_low` and `name_high`."""
    low, high = (f"{times * row[f'{name}_{end}']:.{digits}f}".replace("-", "−") for end in ("low", "high"))
    return low, high


def quoted(place: str, words: str) -> tuple[str, str, str]:
    """The value and the two ends that a stored trial's verdict gives after these words, as it writes them."""
    number = r"\+?(-?[\d.]+)"
    verdict = read(place)["result"]["verdict"]
    found = re.search(rf"{re.escape(words)} \(?{number} \({number} to {number}\)", verdict)
    if found is None:
        raise ValueError(f"{place}: no interval after '{words}'")
    value, low, high = found.groups()
    return value, low, high
