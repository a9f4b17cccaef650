"""Does the sink need much text?"""

from __future__ import annotations

from sinkscope.experiments import FromRecipe, Has, Question, Variation, above, gap, more_models, most_models

STUDY = FromRecipe(job="replication")
BASE = range(13)
SINK = Has("sink_0", 3.0)
SECTION_5 = "Gu et al. 2025, section 5"

QUESTION = Question(
    name="data-amount",
    asks="Does the sink need much text?",
    source=SECTION_5,
    base=STUDY,
    seeds=range(3, 10),
    variations=(
        Variation("all", {}, {"sink_0": 18.18}, seeds=BASE),
        Variation("1/20", {"data.train_share": 0.05}),
        Variation("1/100", {"data.train_share": 0.01}),
        Variation("1/700", {"data.train_share": 0.0014}, seeds=(3, 4, 5)),
    ),
    assertions=(
        more_models(
            "all",
            "1/700",
            SINK,
            "needs text",
            "more models have a sink with all of the text than with 1/700 of it, some 200 passes",
            SECTION_5,
        ),
        most_models(
            "1/20",
            SINK,
            "a twentieth is enough",
            "most models have a sink with 1/20 of the text",
            SECTION_5,
        ),
        above(
            1.0,
            gap("gap", "1/100", "all"),
            "less overfits",
            "with 1/100 of the text validation loss minus training loss is larger by more than 1 nat",
            SECTION_5,
            symmetric=True,
        ),
    ),
    note="Read on validation text, where a model of 1/700 of the text ends 9 nats above one of all of it: that it has "
    "no sink there does not tell little data from overfitting.",
)
