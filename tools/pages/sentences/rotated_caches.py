"""What rotation and protected sinks are worth in quantized caches, and what rotation takes."""

from __future__ import annotations

from statistics import median
from typing import Any

from sinkscope.trials.words import REDUNDANT
from tools.pages.stored import listed, read, span

PAGE = "docs/rotated_caches.md"
SMOLLM2, NANO = "SmolLM2-135M-Instruct.Q4_1.gguf", "nano"
TURBOQUANT = {name: f"turboquant_{name}-unrotated" for name in ("4bit_nc", "k3v4_nc", "3bit_nc")}
WHOLE = 4  # layers that TurboQuant leaves as they are


def sentences() -> list[str]:
    """The page's sentences, in its order."""
    return [*_texts(), *_smollm2(), *_turboquant(), *_nano(), *_bits(), *_traps(), *_time()]


def _texts() -> list[str]:
    counts = {row["texts"] for model in (SMOLLM2, NANO) for row in _every(model)}
    sinks = span((place for model in (SMOLLM2, NANO) for row in _every(model) for place in row["protected"]), 0)
    long, short = ({row["tokens"] for row in _every(model)} for model in (SMOLLM2, NANO))
    return [
        f"nats a token, over {span(counts, 0)} texts;",
        f"on texts of {span(long, 0)} tokens, `nano` on texts of {span(short, 0)}, three quarters of them cached.",
        f'"+ sink": position {sinks}, which was measured',
        f"whose measured sink is position {sinks}, so the table",
    ]


def _smollm2() -> list[str]:
    limits = (
        100 * row["gain_high"] / (REDUNDANT * row["rotated"])
        for row in (_prose(SMOLLM2, "kv4-token"), _prose(SMOLLM2, TURBOQUANT["k3v4_nc"]))
    )
    coarse = [row["rotated"] for row in _rows(SMOLLM2, "kv2-token")]
    spread = [_gain(row) for name in ("kv4-token", "kv3-token", "q4_0-unrotated") for row in _rows(SMOLLM2, name)]
    nvfp4 = [_gain(row) for name in ("nvfp4", "nvfp4_4over6") for row in _rows(SMOLLM2, name)]
    prose, code = _rows(SMOLLM2, "kv2-kivi")
    random = (f"{row['rotated'] - row['rotated_random']:.3f}" for row in (prose, code))
    answers = [row["redundant"] for row in _every(SMOLLM2)]
    return [
        f"the answer is no in {answers.count('no')} of {len(answers)} rows.",
        f"whose intervals end at {listed(f'{limit:.0f}' for limit in limits)} % of the limit",
        f"which cost {span(coarse, 1)} nats in any case.",
        f"it takes 4 bits from {_both(SMOLLM2, 'kv4-token', 'plain')} nats (prose, code) to "
        f"{_both(SMOLLM2, 'kv4-token', 'rotated')}, 3 bits from {_both(SMOLLM2, 'kv3-token', 'plain', 2)} to "
        f"{_both(SMOLLM2, 'kv3-token', 'rotated')}, `q4_0` from {_both(SMOLLM2, 'q4_0-unrotated', 'plain')} to "
        f"{_both(SMOLLM2, 'q4_0-unrotated', 'rotated')}.",
        f"the sink then gives back {span(spread, 0, 100)} % in these caches, {span(nvfp4, 0, 100)} % in NVFP4 (with",
        f"and {_gains(SMOLLM2, 'kv2-kivi')} % in KIVI's 2 bits: {prose['rotated']:.3f} to "
        f"{prose['rotated_protected']:.3f} on prose, {code['rotated']:.3f} to {code['rotated_protected']:.3f} on code, "
        f"where as many random tokens give back {listed(random)}.",
    ]


def _turboquant() -> list[str]:
    sixteen = TURBOQUANT["4bit_nc"]
    eight = [row for name in ("k3v4_nc", "3bit_nc") for row in _rows(SMOLLM2, TURBOQUANT[name])]
    gains = {name: _gains(SMOLLM2, scheme) for name, scheme in TURBOQUANT.items()}
    return [
        f"on keys as they are, 16 levels cost {_both(SMOLLM2, sixteen, 'plain', 2)} nats and 8 levels "
        f"{span((row['plain'] for row in eight), 1)}; rotated, {_both(SMOLLM2, sixteen, 'rotated')} and "
        f"{span((row['rotated'] for row in eight), 3)}. Of that the sink gives back {gains['4bit_nc']} % with 16 "
        f"levels, {gains['3bit_nc']} % in `3bit_nc`, {gains['k3v4_nc']} % in `k3v4_nc`.",
    ]


def _nano() -> list[str]:
    fewest = (f"{row['plain']:.3f} to {row['rotated']:.3f}" for row in _rows(NANO, "kv2-token"))
    nvfp4 = ", ".join(f"{row['plain']:.4f} to {row['rotated']:.4f}" for row in _rows(NANO, "nvfp4"))
    return [
        f"rotation takes 2 bits from {listed(fewest)}, and hardly moves 4 bits. There the sink gives back "
        f"{_gains(NANO, 'kv4-token')} % after rotation. NVFP4 gains nothing from rotation ({nvfp4}), and its sink is "
        f"worth {_gains(NANO, 'nvfp4')} %:",
        f"With 4over6 its cache costs {_both(NANO, 'nvfp4_4over6', 'rotated')}, too little to tell",
    ]


def _bits() -> list[str]:
    """TurboQuant's bits, had the layers that it leaves whole 16 instead of 32."""
    rows = [_prose(SMOLLM2, scheme) for scheme in TURBOQUANT.values()]
    bits = (32 * row["bytes_share"] - (32 - 16) * WHOLE / len(row["key_shapes"]) for row in rows)
    return [f"(with 16-bit layers: {listed(f'{each:.1f}' for each in bits)})."]


def _traps() -> list[str]:
    kv4, nvfp4 = _prose(SMOLLM2, "kv4-token"), _prose(SMOLLM2, "nvfp4")
    kivi = _prose(NANO, "kv2-kivi")
    layers = kv4["key_shapes"]
    longest = max(layers, key=lambda layer: float(layer["ratio"]))
    return [
        f"Keys are {median(layer['ratio'] for layer in layers):.1f} times as long as values in the median layer of "
        f"SmolLM2, and up to {longest['ratio']:.0f} times (layer {longest['layer']}).",
        f"4-bit error of keys from {_errors(kv4, 'keys', 2)} % and of values from {_errors(kv4, 'values', 2)} %.",
        f"it raises that of its NVFP4 keys ({_errors(nvfp4, 'keys', 2)} %) while KL falls ({nvfp4['plain']:.3f} to "
        f"{nvfp4['rotated']:.3f})",
        f"of `kv2-kivi` (keys {_errors(kivi, 'keys', 1)} %, values {_errors(kivi, 'values', 1)} %) and yet takes its "
        f"KL from {kivi['plain']:.4f} to {kivi['rotated']:.4f}.",
    ]


def _time() -> list[str]:
    seconds = read("real/rotated_caches")["seconds_a_token"]["8 layers × 512"]

    def longer(scheme: str, than: str = "full") -> str:
        return f"{seconds[scheme] / seconds[than]:.2f}"

    rotated = {
        "kv4-token": "kv4-token-rotated",
        "kv4-kivi": "kv4-kivi-rotated",
        "q4_0-unrotated": "q4_0",
        "nvfp4": "nvfp4-rotated",
        "turboquant_4bit_nc-unrotated": "turboquant_4bit_nc",
    }
    beside = (f"`{name.removesuffix('-unrotated')}` × {longer(rotated[name], name)}" for name in rotated)
    unpacked = ("turboquant_4bit_nc", "kv4-token-rotated", "q4_0", "nvfp4-rotated")
    by_token = (f"`{name.removesuffix('-rotated')}` × {longer(name)}" for name in unpacked)
    return [
        f"against the same cache without rotation: {', '.join(beside)}.",
        f"Against `DynamicCache`: `kv4-kivi` × {longer('kv4-kivi')}, rotated × {longer('kv4-kivi-rotated')}; formats "
        f"that are unpacked token by token cost more here, {', '.join(by_token)}:",
    ]


def _rows(model: str, scheme: str) -> list[dict[str, Any]]:
    """A scheme's rows, on prose and on code."""
    stored = read("real/rotated_caches")["models"][model]
    return [stored[corpus][scheme] for corpus in ("python:prose", "python:code")]


def _prose(model: str, scheme: str) -> dict[str, Any]:
    return _rows(model, scheme)[0]


def _every(model: str) -> list[dict[str, Any]]:
    return [row for schemes in read("real/rotated_caches")["models"][model].values() for row in schemes.values()]


def _both(model: str, scheme: str, name: str, digits: int = 3) -> str:
    """What both corpora say, prose first, or one number where they read the same."""
    return listed(dict.fromkeys(f"{row[name]:.{digits}f}" for row in _rows(model, scheme)))


def _gain(row: dict[str, Any]) -> float:
    """The share of the rotated cache's cost that its sink gives back, against random tokens."""
    return float(row["gain"] / row["rotated"])


def _gains(model: str, scheme: str) -> str:
    """The same in percent, on prose and on code."""
    return listed(dict.fromkeys(f"{100 * _gain(row):.0f}" for row in _rows(model, scheme)))


def _errors(row: dict[str, Any], side: str, digits: int) -> str:
    """The error of keys or values, plain and rotated, in percent."""
    return " to ".join(f"{100 * errors[side]:.{digits}f}" for errors in row["reconstruction"].values())
