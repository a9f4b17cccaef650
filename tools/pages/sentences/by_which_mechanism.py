"""Where SmolLM2's massive activation comes and goes, and which heads of it and of `nano` have a sink."""

from __future__ import annotations

from typing import Any

from sinkscope.sinks.rule import EPSILON
from tools.pages.measured import MOST, SINK_LAYER
from tools.pages.stored import in_words, read, stretches, windows

PAGE = "docs/by_which_mechanism.md"


def sentences() -> list[str]:
    """The page's sentences, in its order."""
    return [*_smollm2(), *_nano()]


def _smollm2() -> list[str]:
    found: dict[str, Any] = read("real/measure_smollm2")
    samples, tokens = windows(found)
    ratios = {row["depth"]: row["hidden_norm_ratio"] for row in found["depths"]}
    heads = [head for head in found["heads"] if head["layer"] == SINK_LAYER]
    (first, last), (again, _) = stretches({head["layer"] for head in found["heads"] if head["sink"] > MOST})
    strongest = max(heads, key=lambda head: head["alpha"])
    return [
        f"it reads {samples} windows of {tokens} tokens of prose in its chat format. The {in_words(len(heads))} heads "
        f"of its layer {SINK_LAYER} (some columns)",
        f"before the block of that number ({max(ratios)}: after the last)",
        f"is dark in layers {first} to {last} and from {again} on;",
        f"there is a massive activation, made by block {found['massive'][0]['onset'] - 1};",
        f"the norm of the first token grows to {ratios[first]:.0f} times the others' before layer {first}, where the "
        f"sink begins, is gone at layers {last + 1} and {again - 1} together with the sink, and grows to "
        f"{ratios[again]:.0f} times before layer {again}, where the sink is again.",
        f"In SmolLM2's head {strongest['layer']}.{strongest['head']} no other half is left.",
    ]


def _nano() -> list[str]:
    facts = read("models/nano")["sections"]["sink"]["on"]["prose"]["facts"]
    masses = {
        f"{head['layer']}.{head['head']}": head["mass"] for head in read("real/fold_nano")["parts"]["heads"]["heads"]
    }
    sinks = [head for head, mass in masses.items() if mass > EPSILON]
    return [
        f"in `nano` the norm jumps before layer {facts['block'] + 1}, whose heads have no sink",
        f"({len(facts['by_layer'])} layers, a sink in heads {' and '.join(sinks)})",
        f"Head {max(sinks, key=masses.__getitem__)} of `nano` gives more than half of its attention to the BOS",
    ]
