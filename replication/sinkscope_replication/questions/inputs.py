"""Does the sink need natural text, and its BOS?"""

from __future__ import annotations

from sinkscope.experiments import FromRecipe, Has, Question, Variation, above, metric_gap, most_models

STUDY = FromRecipe(job="replication")
BASE = range(13)
TABLE_1 = "Gu et al. 2025, Table 1, LLaMA2-7B"
SLIDES = "slides of Gu et al. 2025"
WITH_BOS = "the paper trains without a fixed BOS"

QUESTION = Question(
    name="inputs",
    asks="Does the sink need natural text, and its BOS?",
    source=TABLE_1,
    base=STUDY,
    seeds=BASE,
    variations=(
        Variation("softmax", {}, {"sink_0": 92.47, "sink_0/random_after_first": 90.13, "sink_0/repeated": 0.0}),
    ),
    assertions=(
        most_models(
            "softmax",
            Has("sink_0/random_after_first", 3.0),
            "random tokens",
            "most models have a sink on random tokens after the BOS",
            TABLE_1,
        ),
        most_models(
            "softmax",
            Has("sink_0/without_first", at_most=1.0),
            "none without its BOS",
            "most models trained with a fixed BOS have a sink in at most 1 % of heads without it",
            SLIDES,
        ),
        above(
            1.0,
            metric_gap("softmax", "loss/without_first", "loss/with_first"),
            "its loss breaks down",
            "the loss of a model trained with a fixed BOS rises by more than 1 nat without it",
            SLIDES,
            symmetric=True,
        ),
    ),
    not_at={"paper": WITH_BOS},
)
