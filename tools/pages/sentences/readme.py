"""What README says of SmolLM2 and of the study's models."""

from __future__ import annotations

from tools.pages.stored import read, stretches

PAGE = "README.md"
SAFE = "free", "small"


def sentences() -> list[str]:
    """The page's sentences, in its order."""
    sections = read("models/SmolLM2-135M-Instruct.Q4_1.gguf")["sections"]
    sink = sections["sink"]["on"]["prose in the chat format"]["facts"]
    layers = len(sink["by_layer"])
    (first, last), (again, _) = stretches(sink["layers"])
    cache = [{row["key"]: row["word"] for row in part["rows"]} for part in sections["cache"]["on"].values()]
    code = {row["key"]: row["word"] for row in sections["cache"]["on"]["code"]["rows"]}
    costly = max(bits for bits in (2, 4, 8) if code[f"kv{bits}-protected"] == "costs")
    borne = min(bits for bits in (2, 4, 8) if all(words[f"kv{bits}"] in SAFE for words in cache))
    return [
        f"Attention to position {sink['position']} in {layers} layers of {sink['heads'] // layers} heads: strong in "
        f"layers {first} to {last} and from {again} on.",
        f"on code {costly} bits *cost* even with position {sink['position']} whole, and `check --full`, which reads "
        f"both, says {borne}.",
        f"with models of {read('models/nano')['parameters'] / 1e6:.1f} million parameters",
    ]
