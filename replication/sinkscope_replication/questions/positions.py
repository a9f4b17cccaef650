"""Does the sink need a certain position embedding, or any?"""

from __future__ import annotations

from sinkscope.experiments import FromRecipe, Has, Question, Variation, most_models

STUDY = FromRecipe(job="replication")
BASE = range(13)
SINK = Has("sink_0", 3.0)

TABLE_3, TABLE_11, TABLE_12 = (f"Gu et al. 2025, Table {number}" for number in (3, 11, 12))

# The paper's sink rate and loss.
POSITIONS = {
    "none": (20.35, 3.81),
    "sinusoidal": (32.73, 3.74),
    "learned": (33.13, 3.79),
    "relative_paper": (35.53, 5.45),
    "alibi": (20.78, 3.71),
    "rotary": (18.18, 3.73),
}

QUESTION = Question(
    name="positions",
    asks="Does the sink need a certain position embedding, or any?",
    source=TABLE_3,
    base=STUDY,
    seeds=(3, 4, 5),
    variations=tuple(
        Variation(name, {"model.position": name}, {"sink_0": sink, "loss": loss}, BASE if name == "rotary" else None)
        for name, (sink, loss) in POSITIONS.items()
    ),
    assertions=(
        most_models(
            ("none", "sinusoidal", "learned", "alibi"),
            SINK,
            "always",
            "most models with no, sinusoidal, learned and ALiBi positions have a sink",
            TABLE_3,
        ),
        most_models(
            "relative_paper",
            Has("sink_0", 3.0, minus="sink_0/start"),
            "relative: emerges",
            "in most models with relative positions the rate ends 3 points above where it starts",
            TABLE_3,
        ),
    ),
    note="Untrained models of 'relative_paper' have the sink already: its random bias gives the first position most of "
    "each row.",
)
