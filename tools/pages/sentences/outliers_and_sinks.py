"""What protecting outliers leaves of the cost of 8-bit activations in SmolLM2."""

from __future__ import annotations

from typing import Any

from tools.pages.stored import arms, read

PAGE = "docs/outliers_and_sinks.md"
CODE = "real/trials/quantize-a8-tensor-code"
CARD = "models/SmolLM2-135M-Instruct.Q4_1.gguf"


def sentences() -> list[str]:
    """The page's sentences, in its order."""
    tokens, left = read(CODE)["result"]["tokens"], arms(CODE)["outliers"]
    prose, code = (_on_card(corpus) for corpus in ("prose in the chat format", "code"))
    return [
        f"with four tokens of {tokens} in prose and fewer than three in code",
        f"of code {left['kl']:.3f} is left, and {left['kl_high']:.3f} cannot be ruled out",
        f"On the {prose['n']} shorter texts of",
        f"it is the other way round: {prose['value']:.3f} of prose, {code['value']:.3f} of code",
    ]


def _on_card(corpus: str) -> dict[str, Any]:
    """What 8-bit activations cost on the report card with sinks and outliers in full precision."""
    rows = read(CARD)["sections"]["int8"]["on"][corpus]["rows"]
    (found,) = (row for row in rows if row["key"] == "a8-tensor-protected")
    return dict(found)
