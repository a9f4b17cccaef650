"""Does a longer context make a stronger sink, at equal tokens?"""

from __future__ import annotations

from sinkscope.experiments import FromRecipe, Question, Variation, above_ratio, rising

STUDY = FromRecipe(job="replication")
NEW_BASE = range(13, 25)
NEW = range(13, 19)
NANO_ONLY = dict.fromkeys(("mini", "paper"), "contexts and batch sizes are those of nano")

QUESTION = Question(
    name="context",
    asks="Does a longer context make a stronger sink, at equal tokens?",
    source="Barbero et al. 2025",
    base=STUDY,
    seeds=NEW,
    variations=(
        Variation("64", {"context": 64, "batch_size": 64}),
        Variation("128", {}, {"sink_0": 0.0}, seeds=NEW_BASE),
        Variation("256", {"context": 256, "batch_size": 16}),
    ),
    assertions=(
        above_ratio(
            1.25,
            rising("sink_mass", ("64", "128", "256"), log=True),
            "monotone",
            "the sink mass on 64 tokens rises more than 1.25 times from a context of 64 to 256",
            "Barbero et al. 2025: rates of about 0 at 128, about 36 % at 2048, without a fixed BOS",
        ),
    ),
    not_at=NANO_ONLY,
)
