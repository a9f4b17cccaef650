"""What makes the sink of SmolLM2 and of the package's own models."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from tools.pages.stored import number, read, span

PAGE = "docs/origin.md"


def sentences() -> list[str]:
    """The page's sentences, in its order."""
    return [*_texts(), *_place(), *_variance(), *_feed_forward(), *_massive(), *_largest(), *_not_settled()]


def _texts() -> list[str]:
    smollm2, nano, hybrid = (_stored(model) for model in ("smollm2", "nano", "nano_hybrid"))
    return [
        f"`python:prose`, {smollm2['tokens']} tokens, k = {smollm2['origin']['test']}, {smollm2['controls']} controls "
        f"for each test: {smollm2['texts']} texts without a BOS for SmolLM2-135M-Instruct (dequantized Q4_1), "
        f"{nano['texts']} texts for the package's own models",
        f"Texts of nano-hybrid have {hybrid['tokens']}, since",
    ]


def _place() -> list[str]:
    test, alone = _stored("smollm2")["origin"]["test"], _tests("smollm2")["isolate"]
    return [
        f"Whatever token comes first is the sink of {_before('smollm2', 0)} % of SmolLM2's heads",
        f"alone with itself, token {test} gets one in {number(alone['rate_at_test'], 0)} % of the heads. But seeing "
        f"one *other* token alone makes one in {number(alone['rate_of_controls'], 0)} %",
    ]


def _variance() -> list[str]:
    origin, tests = _stored("smollm2")["origin"], _tests("smollm2")
    times = {layer: sink / test for layer, (sink, test) in enumerate(origin["variance_at_sink_and_test"])}
    more = {layer: ratio for layer, ratio in times.items() if ratio > 1}
    costs = [tests[arm]["nats"] for arm in ("match-output", "match-values")]
    return [
        f"have more variance than those of token {origin['test']} in layers {_layers(list(more))} of SmolLM2 "
        f"({span(more.values(), 0)} times) and less in the others; giving "
        f"that of the first to token {origin['test']}, in all layers, costs {span(costs, 2)} nats",
    ]


def _layers(layers: list[int]) -> str:
    """Layers as a page lists them: three or more that lie together by the first and the last."""
    runs = [[layer for _, layer in run] for _, run in groupby(enumerate(layers), lambda each: each[1] - each[0])]
    *first, last = [
        part for run in runs for part in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else [str(each) for each in run])
    ]
    return f"{', '.join(first)} and {last}" if first else last


def _feed_forward() -> list[str]:
    smollm2, hybrid, nano = (_tests(model)["mute-step"] for model in ("smollm2", "nano_hybrid", "nano"))
    written_by = {model: _stored(model)["origin"]["step"] - 1 for model in ("smollm2", "nano_hybrid", "nano")}
    return [
        f"block {written_by['smollm2']} of SmolLM2 ({_before('smollm2', 0)} to {number(smollm2['rate_at_sink'], 0)} %, "
        f"{number(smollm2['nats'], 1)} nats), block {written_by['nano_hybrid']} of the hybrid "
        f"({_before('nano_hybrid', 0)} to {number(hybrid['rate_at_sink'], 0)} %); block {written_by['nano']} of nano "
        f"writes about half ({_before('nano', 1)} to {number(nano['rate_at_sink'], 1)} %)",
    ]


def _massive() -> list[str]:
    tests, ours = _tests("smollm2"), [_tests(model) for model in ("nano", "nano_hybrid")]
    stream, read_by_maps = tests["median-before"], tests["median-after"]
    entries = _stored("smollm2")["origin"]["entries"]
    gone = " and ".join(f"{round(each['median-after']['rate_at_sink'], 1):g}" for each in ours)
    grown = " and ".join(number(each["median-before"]["rate_at_sink"], 1) for each in ours)
    fewer = [number(-read_by_maps[name], 2) for name in ("more", "more_high", "more_low")]
    return [
        f"SmolLM2's channel {' and '.join(str(channel) for _, _, channel in entries)} costs "
        f"{number(stream['nats'], 0)} nats, yet {number(stream['rate_at_sink'], 0)} % of the heads keep their sink at "
        f"position {stream['sink_at']}. Another channel moved as far costs half of that ({number(stream['more'], 1)} "
        f"nats less; {number(stream['more_low'], 1)} to {number(stream['more_high'], 1)}), and "
        f"{number(stream['rate_of_controls'], 0)} % keep it",
        f"only where maps read, it costs {number(read_by_maps['nats'], 2)} nats, *less* than another channel moved as "
        f"far (by {fewer[0]}; {fewer[1]} to {fewer[2]}), and {number(read_by_maps['rate_at_sink'], 0)} % keep it, "
        f"{number(read_by_maps['rate_of_controls'], 0)} % under the control",
        f"it takes the sink away ({gone} %), while",
        f"the sink stays or grows ({grown} %)",
    ]


def _largest() -> list[str]:
    moved = _tests("smollm2")["relocate"]
    return [
        f"they break SmolLM2 as setting them does ({number(moved['nats'], 0)} nats, {number(moved['more'], 1)} more "
        "than others moved as far)",
    ]


def _not_settled() -> list[str]:
    smollm2 = _stored("smollm2")
    return [f"k = {smollm2['origin']['test']} of {smollm2['tokens']} tokens."]


def _stored(model: str) -> dict[str, Any]:
    """A model's trial."""
    stored: dict[str, Any] = read(f"real/origin_{model}")
    return stored


def _tests(model: str) -> dict[str, dict[str, Any]]:
    """The rows of a model's tests by their names."""
    return {row["arm"]: row for row in _stored(model)["tests"]}


def _before(model: str, digits: int) -> str:
    """The unchanged model's rate at the sink, in percent."""
    return number(100 * _stored(model)["unchanged"]["rate_at_sink"][0], digits)
