"""What a prefix gives back to SmolLM2 once it is rounded as well, and what its text alone does."""

from __future__ import annotations

from tools.pages.stored import arms

PAGE = "docs/prefix.md"


def sentences() -> list[str]:
    """The page's sentences, in its order."""
    prose, code = (arms(f"real/trials/quantize-prefix-{corpus}") for corpus in ("prose", "code"))
    rounded = [100 * found["prefix, rounded"]["recovered"] for found in (prose, code)]
    better = [-found["full after prefix"]["lost"] for found in (prose, code)]
    return [
        f"it gives back only {rounded[0]:.0f} % on prose and {rounded[1]:.0f} % on code",
        f"whose predictions are better by {better[0]:.2f} and {better[1]:.2f} nats",
    ]
