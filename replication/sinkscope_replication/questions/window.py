"""Does a short window prevent the sink?"""

from __future__ import annotations

from typing import Any

from sinkscope.experiments import FromRecipe, Has, Question, Variation, more_models, most_models

STUDY = FromRecipe(job="replication")
SECTION_6 = "Gu et al. 2025, section 6"
NANO_ONLY = dict.fromkeys(("mini", "paper"), "contexts and batch sizes are those of nano")

# A first token that only 32 of 64 queries see never has a high rate: windows are compared on texts as short as the
# shortest window, which hides nothing of them.
WIDE = {"context": 256, "batch_size": 16}  # as many tokens a step as nano
HALF = "sink_0/tokens=32/epsilon=0.5"


def windowed(size: int, seeds: Any = None) -> Variation:
    """Training with a window of so many tokens."""
    mask = {"kind": "and", "first": {"kind": "causal"}, "second": {"kind": "window", "size": size}}
    return Variation(f"window of {size}", {"attention": {"mask": mask}}, seeds=seeds)


QUESTION = Question(
    name="window",
    asks="Does a short window prevent the sink?",
    source=SECTION_6,
    base=STUDY,
    seeds=range(3, 9),
    shared=WIDE,
    variations=(Variation("causal"), windowed(32), windowed(64, range(3, 10))),
    assertions=(
        more_models(
            "causal",
            "window of 32",
            Has(HALF, 3.0),
            "short prevents it",
            "on 32 tokens, at a threshold of .5, more models have a sink with full attention than with a window of 32",
            SECTION_6,
        ),
        most_models(
            "window of 64",
            Has("strongest_position/tokens=128", 0, 0),
            "on the absolute first token",
            "on 128 tokens the strongest position of most models with a window of 64 is 0",
            SECTION_6,
        ),
    ),
    not_at=NANO_ONLY,
)
