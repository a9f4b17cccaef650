"""How often SmolLM2's first token is a sink, by place, definition and threshold."""

from __future__ import annotations

from typing import Any

from sinkscope.sinks.rule import EPSILON
from tools.pages.measured import MOST
from tools.pages.stored import in_words, read, stretches, windows

PAGE = "docs/does_my_model_have_a_sink.md"


def sentences() -> list[str]:
    """The page's sentences, in its order."""
    return [*_command(), *_figures(), *_rate(), *_definitions(), *_inputs(), *_thresholds()]


def _measured() -> dict[str, Any]:
    return dict(read("real/measure_smollm2"))


def _command() -> list[str]:
    found = _measured()
    samples, tokens = windows(found)
    natural, layers = found["inputs"][0], len(found["layers"])
    return [
        f"{layers} layers of {len(found['heads']) // layers} heads, rotary positions. It reads {samples} windows of "
        f"{tokens} tokens of the shipped prose",
        f"The seed is {found['input']['seed']}.",
        f"in {natural['sink_rate']:.1f} % of (layer, head) pairs (95 % interval {natural['low']:.1f} to "
        f"{natural['high']:.1f})",
    ]


def _figures() -> list[str]:
    found = _measured()
    sink = read("models/SmolLM2-135M-Instruct.Q4_1.gguf")["sections"]["sink"]["on"]["prose in the chat format"]["facts"]
    layers = len(sink["by_layer"])
    (first, last), (again, _) = stretches(sink["layers"])
    rates, half = found["positions"], windows(found)[1] // 2
    highest = max(rates[1:half])
    return [
        f"A map of {layers} layers by {sink['heads'] // layers} heads: attention that position {sink['position']} "
        f"receives. Layers 0 to {first - 1}, {last + 1} and {again - 1} are pale; most heads of layers {first} to "
        f"{last} are orange, and from layer {again} on many are darker.",
        f"Position 0 is at {rates[0]:.0f} %, in orange; nearly all others are at zero, a few around position "
        f"{rates.index(highest)} at up to {highest:.0f} %, and pale bars at the end rise to {max(rates[half:]):.0f} %",
    ]


def _rate() -> list[str]:
    found = _measured()
    heads = found["heads"]
    most = [head for head in heads if head["sink"] > MOST]
    in_mean = sum(head["alpha"] > EPSILON for head in heads)
    without = {head["layer"] for head in heads} - {head["layer"] for head in most}
    (first, last), (gone, back) = stretches(without)
    return [
        f"{found['inputs'][0]['sink_rate']:.1f} % means {len(most)} heads of {len(heads)}, in most samples (the answer "
        f"counts {in_mean}: those above ε in the mean over samples), and none in layers {first} to {last}, {gone} and "
        f"{back}.",
    ]


def _definitions() -> list[str]:
    found = _measured()
    samples, tokens = windows(found)
    names = {row["definition"]: row["sinks"] for row in found["definitions"]}
    first_alone = [row for row in found["definitions"] if row["sinks"] == 1 and row["position_0"] == 100]
    first, line_end, *others = found["tokens"]
    peak = found["massive"][0]
    uniform = found["heads"][0]["alpha"] / found["heads"][0]["lift"]
    return [
        f"Here {in_words(len(first_alone))} rules name exactly one token in a sample, the first. *Attention received* "
        f"names {names['attention received'] - first['sinks'] / samples:.1f} more: the line end at position "
        f"{line_end['first']} in each text, and on average {sum(row['sinks'] for row in others) / samples:.1f} others",
        f"*Five times uniform* names {names['five times uniform'] - 1:.0f} more: 5/{tokens} = {5 / tokens:.2f} is "
        f"little, and uniform attention by itself gives position 0 of a causal model {uniform:.3f}.",
        f"its largest entry, in channel {peak['dimension']}, is {round(peak['over_median'], -3):,.0f} times the median",
    ]


def _inputs() -> list[str]:
    samples, tokens = windows(_measured())
    return [f"SmolLM2's sink rate at position 0, {samples} samples of {tokens} tokens:"]


def _thresholds() -> list[str]:
    found = _measured()["sweep"]
    least, *_, largest = inner = found["epsilon"][1:-1]
    rates = [by_length[-1] for by_length in found["rates"][1 : 1 + len(inner)]]
    return [
        f"At {found['length'][-1]} tokens the rate lies between {min(rates):.0f} and {max(rates):.0f} % for every ε "
        f"from {least} to {largest}, so",
    ]
