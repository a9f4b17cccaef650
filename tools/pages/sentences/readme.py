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
    stored = read("real/card_smollm2")
    return [
        _card(stored["default"]["lines"]),
        f'{{m.sink_rate(position=0):.1f}} %")  # → {stored["python"]["sink_rate"]} print(m.sinks())  # → '
        f"{stored['python']['sinks']}",
        f"Attention to position {sink['position']} in {layers} layers of {sink['heads'] // layers} heads: strong in "
        f"layers {first} to {last} and from {again} on.",
        f"on code {costly} bits *cost* even with position {sink['position']} whole, and `check --full`, which reads "
        f"both, says {borne}.",
        f"with models of {read('models/nano')['parameters'] / 1e6:.1f} million parameters",
    ]


def _card(lines: list[str]) -> str:
    """The sentences of the report card, and the first line for an engine up to what to beware of."""
    first = next(number for number, line in enumerate(lines) if line.startswith("llama.cpp: "))
    return " ".join([*lines[:first], lines[first].partition(" Beware: ")[0]])
