"""Which model of more heads shows a sink?"""

from __future__ import annotations

from sinkscope.experiments import FromRecipe, Has, Question, Variation, most_models

OURS = "our question"
NANO_ONLY = dict.fromkeys(("mini", "paper"), "it asks what can be asked at nano")


def shape(layers: int, heads: int, seeds: object = None) -> Variation:
    """So many layers of so many heads."""
    changes = {"model.num_hidden_layers": layers, "model.num_attention_heads": heads}
    return Variation(f"{layers} layers of {heads} heads", changes, seeds=seeds)  # type: ignore[arg-type]


QUESTION = Question(
    name="micro-pilot",
    asks="Which model of more heads shows a sink?",
    source=OURS,
    base=FromRecipe("micro", job="replication"),
    seeds=range(3, 10),
    variations=(
        shape(4, 8, (3,)),
        shape(6, 8),
        shape(8, 4, (3,)),
        Variation("k_bias, no BOS", {"attention": "k_bias", "data.bos": "none"}),
    ),
    assertions=(
        most_models(
            "6 layers of 8 heads", Has("sink_0", 3.0), "a sink", "most models of 6 layers and 8 heads have a sink", OURS
        ),
        most_models(
            "k_bias, no BOS", Has("slot", 3.0), "on a key bias", "most models without a BOS have it on a key bias", OURS
        ),
    ),
    not_at=NANO_ONLY,
    note="Information is (effect / SD)² per hour: by mass equal to nano's (6.9 % with a standard deviation of .75 in "
    "21 minutes, nano 5.0 % with .70 in 7), by rate about twice, on three seeds.",
)
