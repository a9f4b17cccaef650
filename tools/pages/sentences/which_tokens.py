"""Which tokens are sinks in SmolLM2 and in the shipped encoder."""

from __future__ import annotations

from tools.pages.stored import groups, read

PAGE = "docs/which_tokens.md"
LINE_END = "Ċ"


def sentences() -> list[str]:
    """The page's sentences, in its order."""
    measured, docstrings = read("real/measure_smollm2"), read("real/which_tokens_smollm2")
    (line_end,) = (row["first"] for row in measured["tokens"] if row["token"] == LINE_END)
    (tokens,) = groups(r"--tokens (\d+)", measured["first_command"])
    return [
        f"The line end at position {line_end}, the comma and ` ten` reach ε in one head each",
        f"it reads the first {docstrings['tokens']} tokens of {docstrings['texts']} docstrings, which begin with "
        f"{docstrings['first_tokens']} different tokens",
        *_encoder(),
        f"The {int(tokens) - 1} tokens after it are the same in all samples",
    ]


def _encoder() -> list[str]:
    stored = read("real/measure_nano_encoder")
    counts = {row["kind"]: row["occurrences"] for row in stored["few_kinds"]}
    tokens = sum(counts.values()) // counts["[CLS]"]
    special = [row for row in stored["lower"] if row["token"] in ("[CLS]", "[SEP]")]
    ((sinks, texts),) = {(row["sinks"], row["occurrences"]) for row in special}
    return [
        f"All {tokens} positions count, because every query sees every key",
        f"Uniform attention is 1/{tokens} = {1 / tokens:.4f}",
        f"both special tokens are sinks in {sinks} of {texts} texts, in a fifth of the heads",
    ]
