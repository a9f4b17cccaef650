"""How many sinks a stream needs, and what it costs."""

from __future__ import annotations

from typing import Any

from tools.pages.stored import bare, groups, read

PAGE = "docs/stream_for_ever.md"
SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
CORPORA = ("prose", "code")
KEYS = (128, 256)  # of SmolLM2's streams
GENERATED = "real/trials/generate-stream"


def sentences() -> list[str]:
    """The page's sentences, in its order."""
    pieces = _figure("token by token / in pieces of 128, read strictly")
    return [
        f"in pieces of 128, it is {pieces['ratio']:.0f} times as fast",
        *_how_many_sinks(),
        *_written(),
        *_steps(),
        *_predictions(),
    ]


def _how_many_sinks() -> list[str]:
    (tokens,) = groups(r"windows of (\d+) tokens", _part("nano", "prose", 64)["inputs"])
    lost = [_sinks(SMOLLM2, corpus, keys, "nll 0 − 4") for keys in KEYS for corpus in CORPORA]
    none, one, four = (
        [bare(_sinks(SMOLLM2, corpus, 128, f"kl {sinks}"), digits) for corpus in CORPORA]
        for sinks, digits in ((0, 2), (1, 3), (4, 3))
    )
    better = [bare(-_sinks("nano", corpus, 64, "nll 1 − 4"), 3) for corpus in CORPORA]
    return [
        f"on the first {tokens} tokens of documents that `nano` was not trained on",
        f"without it SmolLM2 loses {bare(min(lost), 1)} to {bare(max(lost), 1)} nats per token",
        f"(at 128 keys {none[0]} and {none[1]} without a sink, {one[0]} and {one[1]} with one, {four[0]} and "
        f"{four[1]} with four, for docstrings and code)",
        f"at 64 keys prefers one sink to four, by {better[0]} and {better[1]} nats",
    ]


def _part(model: str, corpus: str, keys: int) -> dict[str, Any]:
    return dict(read("real/streaming_sinks")["models"][model][f"python:{corpus}, {keys} keys"])


def _sinks(model: str, corpus: str, keys: int, name: str) -> float:
    """The mean over texts of a number of the comparison of sinks."""
    return float(_part(model, corpus, keys)["summary"][name][0])


def _written() -> list[str]:
    none, one, four = (read(f"{GENERATED}-{sinks}")["result"] for sinks in (0, 1, 4))
    ((tokens, keys),) = {
        (each["tokens"], each["stream"]["sinks"] + each["stream"]["window"]) for each in (none, one, four)
    }
    return [f"What SmolLM2 writes in {tokens:,} sampled tokens, with none, one and four of {keys} keys"]


def _steps() -> list[str]:
    small, medium, large = (_figure(f"a token at {keys} / DynamicCache as long") for keys in (256, 1024, 4096))
    nano, late = _figure("a token at nano, 124 / DynamicCache as long"), _figure("a token at 100,000 / at 1,000")
    return [
        f"{small['ratio']:.2f} times the time at 256 keys, {medium['ratio']:.1f} at 1,024 and {large['ratio']:.1f} at "
        "4,096, because nothing is concatenated",
        f"with 124 keys and {1000 * nano['side']:.0f} milliseconds per step, the checks before each pass are "
        f"visible: {nano['ratio']:.2f} times",
        f"A step at token 100,000 takes {late['ratio']:.2f} times one at token 1,000",
    ]


def _predictions() -> list[str]:
    last, text = "10,000", "20,000"
    found = _figure(f"perplexity of a full cache, tokens 1k to 4k / a stream with 4 sinks, last {last} of {text}")
    return [
        f"On {text} tokens that `nano` was not trained on, its perplexity with a full cache is {found['side']:.0f} "
        f"from the 1,024th to the 4,096th token, and {found['against']:.1f} over the last {last} tokens of a stream",
    ]


def _figure(what: str) -> dict[str, Any]:
    """The row of `benchmarks/streaming.py` with this name."""
    (found,) = (row for row in read("benchmarks/streaming")["figures"] if row["what"] == what)
    return dict(found)
