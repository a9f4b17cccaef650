"""Does the sink depend on the number of heads, or on how they are put together?"""

from __future__ import annotations

from sinkscope.experiments import FromRecipe, Has, Question, Variation, most_models, rising, within

STUDY = FromRecipe(job="replication")
BASE = range(13)
SINK = Has("sink_0", 3.0)

TABLE_3, TABLE_11, TABLE_12 = (f"Gu et al. 2025, Table {number}" for number in (3, 11, 12))

HEADS = {8: (18.18, 3.73), 4: (10.68, 3.74), 2: (12.95, 3.76), 1: (19.50, 3.78)}


def heads_of(count: int) -> Variation:
    """Training with so many heads."""
    sink, loss = HEADS[count]
    label = "1 head" if count == 1 else f"{count} heads"
    seeds = BASE if count == 4 else None
    return Variation(label, {"model.num_attention_heads": count}, {"sink_0": sink, "loss": loss}, seeds)


QUESTION = Question(
    name="heads",
    asks="Does the sink depend on the number of heads, or on how they are put together?",
    source=TABLE_12,
    base=STUDY,
    seeds=(3, 4, 5),
    variations=(
        *map(heads_of, HEADS),
        # The paper adds the outputs of 8 heads.
        Variation(
            "4 heads, added",
            {"model.num_attention_heads": 4, "model.head_combination": "add"},
            {"sink_0": 21.76, "loss": 3.74},
            range(3, 10),
        ),
    ),
    assertions=(
        most_models(
            ("8 heads", "2 heads", "1 head"), SINK, "always", "most models with 8, 2 and 1 heads have a sink", TABLE_12
        ),
        most_models("4 heads, added", SINK, "added", "most models whose heads are added have a sink", TABLE_12),
        within(
            0.1,
            rising("loss", ("8 heads", "4 heads", "2 heads", "1 head")),
            "equal losses",
            "from 8 heads to one the validation loss changes by less than .1 nats",
            TABLE_12,
            symmetric=True,
        ),
    ),
)
