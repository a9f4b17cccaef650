"""Does the sink keep tokens from mixing?"""

from __future__ import annotations

from sinkscope.experiments import Contrast, FromRecipe, Question, Variation, above_ratio, log_quotient, rising

STUDY = FromRecipe(job="replication")
BASE = range(13)
NEW = range(13, 19)
BARBERO = "Barbero et al. 2025"
DEPTHS = (2, 4, 8)


def reach(label: str) -> Contrast:
    """By how much further a change reaches where the window lacks its BOS, as a logarithm."""
    return log_quotient(label, "perturbation/without_first", "perturbation")


QUESTION = Question(
    name="over-mixing",
    asks="Does the sink keep tokens from mixing?",
    source=BARBERO,
    base=STUDY,
    seeds=NEW,
    variations=(
        Variation("2 layers", {"model.num_hidden_layers": 2}),
        Variation("4 layers", {"model.num_hidden_layers": 4}, seeds=BASE),
        Variation("8 layers", {"model.num_hidden_layers": 8}),
        Variation("k_bias", {"attention": "k_bias"}, seeds=6),
    ),
    assertions=(
        above_ratio(
            1.05,
            reach("4 layers") - reach("k_bias"),
            "further than without a sink",
            "without its BOS a change of one token moves later ones more, and by more than 5 % more so than in a model "
            "whose sink a key bias took",
            f"{BARBERO}; the comparison is ours",
        ),
        above_ratio(
            1.25,
            rising("sink_mass", tuple(f"{layers} layers" for layers in DEPTHS), log=True),
            "deeper, stronger",
            "the sink mass rises more than 1.25 times from 2 to 8 layers",
            f"{BARBERO}: Llama-3.1 of 8, 70 and 405 billion parameters, 45.97, 73.49, 78.29 %",
        ),
    ),
    not_at={"paper": "the paper trains without a fixed BOS"},
)
