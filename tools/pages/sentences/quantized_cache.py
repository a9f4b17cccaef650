"""What protected tokens give back in quantized caches, and how these compare with the caches of transformers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from tools.pages.stored import arms, figures, listed, read, span

PAGE = "docs/quantized_cache.md"
BITS = (2, 4, 8)
TRIALS = {bits: [f"real/trials/quantize-kv{bits}-kivi-{corpus}" for corpus in ("prose", "code")] for bits in BITS}
STEP = re.compile(r"a token behind (\d+), (\d) bits: (.*)")
DOSE = re.compile(r"γ (\d+), per head, 2 bits")


def sentences() -> list[str]:
    """The page's sentences, in its order."""
    return [*_protected(), *_time(), *_compared(), *_dose()]


def _protected() -> list[str]:
    lengths = {read(place)["result"]["tokens"] for places in TRIALS.values() for place in places}
    words = {bits: {arms(place)[f"kv{bits}-kivi"]["word"] for place in TRIALS[bits]} for bits in BITS}
    free, costly = ([f"{bits}" for bits in BITS if words[bits] == {word}] for word in ("free", "costs"))
    few = f"{', '.join(map(str, BITS[:-1]))} or {BITS[-1]}"
    return [
        f"**One token of {span(lengths, 0)} in full precision gives back a third of the cost** "
        f"({span(_recovered('measured'), 0, 100)} %), with {few} bits, of prose and of code; a random one at most "
        f"{_at_most(_recovered('random for measured'), 0)} %.",
        f"{listed(free)} bits are *free* without it.",
        f"two or three more tokens, give back {span(_recovered('outliers'), 0, 100)} %, as many first tokens",
        f"and as many random tokens at most {_at_most(_recovered('random for outliers'), 1)} %.",
        f"With {listed(costly)} bits the cache still costs",
    ]


def _recovered(arm: str) -> list[float]:
    """The share of the cost that an arm gives back, for each number of bits and each corpus."""
    return [arms(place)[arm]["recovered"] for places in TRIALS.values() for place in places]


def _at_most(shares: Iterable[float], digits: int) -> str:
    """In percent, what no share exceeds."""
    return f"{math.ceil(max(shares) * 10 ** (digits + 2)) / 10**digits:.{digits}f}"


def _time() -> list[str]:
    steps: dict[str, dict[int, float]] = {}
    behind = set()
    for what, figure in figures("quantized_cache").items():
        if step := STEP.fullmatch(what):
            tokens, bits, sides = step.groups()
            behind.add(int(tokens))
            steps.setdefault(sides, {})[int(bits)] = figure["ratio"]
    quanto = (f"{ratio:.2f}" for ratio in steps["ours / quanto, its defaults"].values())
    return [
        f"After {max(behind):,} tokens of the benchmark's Llama a token then takes "
        f"{span(steps['ours, decoded numbers kept / the full cache'].values(), 2)} times as long as with a full cache.",
        f"it takes {span(steps['ours / the full cache'].values(), 2)} times as long, which is {listed(quanto)} times "
        f"quanto's time and {span(steps['ours / hqq, its defaults'].values(), 2)} times hqq's, at their defaults",
    ]


def _compared() -> list[str]:
    ours, protected, window = (_caches(f"ours {{}} bits{what}") for what in ("", ", sink protected", ", window 16"))
    often, default = (_caches(f"hqq {{}} bits, axis 0, flush {flush}") for flush in (32, 128))
    larger = [f"{bits}" for bits in ours if often[bits]["held"] > ours[bits]["held"]]
    better = (f"{window[bits]['kl'] / default[bits]['kl']:.2f}" for bits in ours)
    gained = [1 - protected[bits]["kl"] / ours[bits]["kl"] for bits in ours]
    costs = [(protected[bits]["held"] - ours[bits]["held"]) / 1024 for bits in ours]
    return [
        f"take the same bytes, except that hqq's {listed(larger)} bits take more.",
        f"hqq predicts {span((ours[bits]['kl'] / default[bits]['kl'] for bits in ours), 1)} times better than ours "
        "without a window.",
        "so that at the end of these texts it takes "
        f"{span((default[bits]['held_at_end'] / ours[bits]['held_at_end'] for bits in ours), 1)} times the bytes.",
        f"{listed(better)} times its divergence at {listed(f'{bits}' for bits in ours)} bits.",
        f"a weak one, gives back {span(gained, 0, 100)} % of the divergence, and costs {span(costs, 0)} KiB.",
    ]


def _caches(name: str) -> dict[int, dict[str, float]]:
    """What `nano` loses and holds with a cache, by its bits."""
    found = read("benchmarks/quantized_cache")["details"]["nano, predictions and bytes a text"]
    return {bits: found[name.format(bits)] for bits in (2, 3, 4)}


def _dose() -> list[str]:
    stored = read("benchmarks/quantized_cache")["details"]
    rows = {dose[1]: row for what, row in stored.items() if (dose := DOSE.fullmatch(what))}
    least, *more, most = rows
    weak, *stronger, strong = map(_given_back, rows.values())
    random = [share for row in rows.values() for what, share in row.items() if what.startswith("recovered, random")]
    step = rows[most]["recovered, sink"] - rows[least]["recovered, sink"]
    return [
        f"protecting the sink gives back {weak} of the KL, {listed(stronger)} with the sink's weight multiplied by "
        f"{listed(more)}, and {strong} by {most}; a random token gives back {span(random, 0, 100)} %.",
        f"but from {least} to {most} it is a step of only {100 * step:.0f} points",
    ]


def _given_back(row: dict[str, Any]) -> str:
    """What protecting the sink gives back, in percent, with its interval."""
    value, low, high = (f"{100 * row[name]:.0f}" for name in ("recovered, sink", "from", "to"))
    return f"{value} % ({low} to {high})"
