"""Metrics, numbers and costs in words."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from sinkscope.statistics.claims import Verdict

TITLES: Mapping[str, str] = {
    "sink/position_0": "sink rate at position 0 (%)",
    "validation_loss": "validation loss (nats)",
    "sink/strongest": "strongest sink rate (%)",
    "loss": "validation loss (nats)",
    "train_loss": "training loss (nats)",
    "strongest": "strongest sink rate (%)",
    "strongest_position": "strongest position",
    "slot": "sink rate of the slot (%)",
    "sink_mass": "sink mass at position 0 (%)",
    "sink/mass": "sink mass at position 0 (%)",
    "sink_mass/strongest": "sink mass at the strongest position (%)",
    "slot_mass": "sink mass of the slot (%)",
    "self_mass": "sink mass of each token on itself (%)",
    "lift": "attention on position 0 over that on the next positions",
    "sink/lift": "attention on position 0 over that on the next positions",
    "first_share": "attention on position 0 (%)",
    "norm_ratio": "hidden-norm ratio",
    "value_ratio": "value-norm ratio",
    "gap": "validation loss above that of training (nats)",
    "entropy": "entropy of attention, mean over heads (nats)",
    "entropy_least": "entropy of attention, least head (nats)",
    "max_logit": "largest attention logit",
    "kurtosis": "kurtosis of hidden states (Gaussian: 3)",
    "kurtosis_neurons": "kurtosis over neurons (all alike: 1)",
    "max_median_ratio": "largest hidden activation over the median",
    "infinity_norm": "largest hidden activation",
    "hidden_spread": "how far tokens lie apart",
    "last_pair_distance": "distance of the last two tokens",
    "matrix_entropy": "entropy of the tokens' directions",
    "top_head": "head with the strongest sink",
}
READINGS: Mapping[str, str] = {
    "start": "at the start",
    "random": "on random tokens",
    "repeated": "on a repeated token",
    "random_after_first": "on random tokens after the first",
    "others": "of keys at other positions",
    "without_first": "without the first token",
    "with_first": "of the same tokens with the first",
    "strongest": "at the strongest position",
    "on_sink": "heads with the sink",
    "controls": "heads of their layers without it",
    "sink_heads": "those with a sink",
    "other_heads": "those without a sink",
    "triggers": "at triggers",
    "zero_head": "head zeroed",
    "diagonal": "every token attending to itself",
    "ideal": "attention as the task asks for it",
    "all_on_first": "all attention on the BOS",
    "all_on_previous": "all attention on the token before",
    "bos_attention": "BOS without attention",
    "bos_value": "BOS with zero values",
    "bos_feed_forward": "BOS without feed-forward",
    "with_bos": "with a BOS before it",
    "plain_text": "on plain text",
    "as_chat": "on text as a user's message",
    "alpha": "attention on its sink",
    "queries_above": "share of its queries with more than 0.3 of their weight there",
    "value_ratio": "its sink's value over the others' (lengths)",
    "key_ratio": "its sink's key over the others' (lengths)",
    "cosine_gap": "cosine of queries with its sink's key minus that with the others",
}
MINUTE, HOUR = 60, 3600


def title(metric: str, titles: Mapping[str, str] | None = None) -> str:
    """A metric of `Observed`, or a curve, in words with its unit; an unknown name is returned unchanged.

    `title("sink_0/tokens=32")` is "sink rate at position 0 (%), 32 tokens". `titles`: the names of the runs' job
    (`Job.titles`), which may use a name for another quantity.
    """
    titles = {**TITLES, **(titles or {})}
    metric = metric.removeprefix("task/")
    if metric in titles:
        return titles[metric]
    whole, _, layer = metric.rpartition("/layer=")
    if whole in titles:
        return f"{titles[whole]}, layer {layer}"
    base, _, reading = metric.partition("/")
    position = re.fullmatch(r"sink_(mass_)?(\d+)", base)
    kind = "mass" if position and position[1] else "rate"
    words = f"sink {kind} at position {position[2]} (%)" if position else titles.get(base, base)
    if not reading:
        return words
    return ", ".join([words, *map(_reading, reading.split("/"))])


def _reading(reading: str) -> str:
    kind, _, value = reading.partition("=")
    numbered = {
        "epsilon": f"ε = {value}",
        "tokens": f"{value} tokens",
        "domain": f"on {value}",
        "sinks": f"{value} first token{'' if value == '1' else 's'} kept",
        "depth": f"after {value} blocks",
        "replaced": f"position embedding replaced by that of {value}",
        "swapped": f"position embedding swapped with that of {value}",
    }
    return numbered.get(kind, READINGS.get(reading, reading))


def number(value: float | None) -> str:
    """Three significant digits; a dash for NaN and None."""
    if value is None or math.isnan(value):
        return "–"
    return f"{value + 0.0:.3g}".replace("-", "−")  # minus zero plus zero is zero


def effect(verdict: Verdict) -> str:
    """The effect of a claim with its interval, with a typographic minus sign."""
    return verdict.found.replace("-", "−")


def sizes(verdict: Verdict) -> str:
    """The number of models: "3", or "3 and 10" for two variations."""
    return " and ".join(map(str, verdict.n)) or str(len(verdict.evidence))


def cost(seconds: float | int) -> str:
    """Seconds in a suitable unit."""
    if seconds < MINUTE:
        return f"{seconds:.0f} s"
    if seconds < HOUR:
        return f"{seconds / MINUTE:.0f} min"
    return f"{seconds / HOUR:.1f} h"


def in_words(value: Any) -> str:
    """A recipe's value in a phrase: pieces by their kind and settings, `and(causal, window(size=16))`."""
    if isinstance(value, Mapping):
        kind = value.get("kind", value.get("name"))
        parts = [
            in_words(part) if isinstance(part, Mapping) else f"{name} = {in_words(part)}"
            for name, part in value.items()
            if name not in ("kind", "name")
        ]
        return ", ".join(parts) if kind is None else f"{kind}({', '.join(parts)})" if parts else str(kind)
    if isinstance(value, list | tuple):
        return ", ".join(map(in_words, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def counted(many: int, one: str) -> str:
    """`counted(3, "run")` is "3 runs"."""
    return f"{many:,} {one}" if many == 1 else f"{many:,} {one}s"
