"""From which window on does the sink emerge?"""

from __future__ import annotations

from typing import Any

from sinkscope.experiments import FromRecipe, Question, Variation, above_ratio, log_ratio

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
    assertions=tuple(
        above_ratio(
            1.25,
            log_ratio("sink_mass/tokens=32", "causal", f"window of {size}"),
            f"weaker at {size}",
            f"on 32 tokens the sink mass is over 1.25 times as large with full attention as with a window of {size}",
            SECTION_6,
        )
        for size in (32, 64, 128)
    ),
    not_at=NANO_ONLY,
)
