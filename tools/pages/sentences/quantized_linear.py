"""What 8-bit activations cost SmolLM2, and which maps and tokens give that back."""

from __future__ import annotations

from typing import Any

from tools.pages.stored import groups, read

PAGE = "docs/quantized_linear.md"
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
PROSE = "prose in the chat format"


def sentences() -> list[str]:
    """The page's sentences, in its order."""
    return [*_card(), *_weights(), *_rescue()]


def _card() -> list[str]:
    corpora = _int8()
    costs = [row["value"] for corpus in corpora for row in _rows(corpus) if row["key"] == "a8-tensor"]
    ((texts, tokens),) = {
        groups(r"(\d+) texts of (\d+) tokens", each["says"]) for each in _stored()["texts"] if each["name"] in corpora
    }
    return [
        f"{texts} texts of {tokens} tokens of each of two corpora",
        f"One range for all tokens of a text costs {min(costs):.1f} to {max(costs):.1f} nats (KL)",
    ]


def _weights() -> list[str]:
    (tokens,) = groups(r"--tokens (\d+)", read("benchmarks/server_weights")["command"])
    return [f"schemes that search or fit do so on other texts, of {tokens} tokens as well"]


def _rescue() -> list[str]:
    rows = {row["key"]: row for row in _rows(PROSE)}
    maps, tokens = (rows[f"rescue:a8-static-{unit}"] for unit in ("maps", "tokens"))
    count, of_maps = groups(r"(\d+) of (\d+) maps", maps["advice"])
    return [
        f"On SmolLM2 ({maps['n']} texts of prose in the chat format), with a frozen range: {count} of {of_maps} maps "
        f"in 16 bits {_given_back(maps)}",
        f"a few tokens of each text {_given_back(tokens)}",
    ]


def _given_back(row: dict[str, Any]) -> str:
    """What a rescue gives back, and what random ones do."""
    return str(row["why"]).replace("-", "−")


def _stored() -> dict[str, Any]:
    return dict(read(f"models/{MODEL}"))


def _int8() -> dict[str, Any]:
    return dict(_stored()["sections"]["int8"]["on"])


def _rows(corpus: str) -> list[dict[str, Any]]:
    return list(_int8()[corpus]["rows"])
