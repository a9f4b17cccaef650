"""From which window on does the sink emerge?"""

from __future__ import annotations

from typing import Any

from sinkscope.experiments import FromRecipe, Question, Variation, above_ratio, rising

STUDY = FromRecipe(job="replication")
NEW = range(13, 19)
SECTION_6 = "Gu et al. 2025, section 6"
NANO_ONLY = dict.fromkeys(("mini", "paper"), "contexts and batch sizes are those of nano")

# A first token that only 32 of 64 queries see never has a high rate: windows are compared on texts as short as the
# shortest window, which hides nothing of them.
WIDE = {"context": 256, "batch_size": 16}  # as many tokens a step as nano


def windowed(size: int, seeds: Any = None) -> Variation:
    """Training with a window of so many tokens."""
    mask = {"kind": "and", "first": {"kind": "causal"}, "second": {"kind": "window", "size": size}}
    return Variation(f"window of {size}", {"attention": {"mask": mask}}, seeds=seeds)


QUESTION = Question(
    name="windows",
    asks="From which window on does the sink emerge?",
    source=SECTION_6,
    base=STUDY,
    seeds=NEW,
    shared=WIDE,
    variations=(Variation("causal"), *map(windowed, (32, 64, 128))),
    assertions=(
        above_ratio(
            1.25,
            rising("sink_mass/tokens=32", ("window of 32", "window of 64", "window of 128", "causal"), log=True),
            "monotone",
            "on 32 tokens the sink mass rises more than 1.25 times from a window of 32 to full attention",
            SECTION_6,
        ),
    ),
    not_at=NANO_ONLY,
)
