"""Does the sink need much text, on the windows that a model was trained on?"""

from __future__ import annotations

from sinkscope.experiments import FromRecipe, Has, Question, Variation, more_models, most_models

STUDY = FromRecipe(job="replication")
FRESH = range(13, 20)  # seven models decide a claim about most of them
SEEN, HELD_OUT = Has("sink_0/training", 3.0), Has("sink_0", 3.0)
SECTION_5 = "Gu et al. 2025, section 5"

QUESTION = Question(
    name="fresh-data-shares",
    asks="Does the sink need much text, on the windows that a model was trained on?",
    source=SECTION_5,
    base=STUDY,
    seeds=FRESH,
    variations=tuple(Variation(f"1/{part}", {"data.train_share": 1 / part}) for part in (2, 5, 20, 50, 700)),
    assertions=(
        more_models(
            "1/2",
            "1/700",
            SEEN,
            "needs text",
            "on their training windows more models of half of the text have a sink than of 1/700 of it",
            SECTION_5,
        ),
        more_models(
            "1/2",
            "1/50",
            SEEN,
            "a fiftieth is too little",
            "on their training windows more models of half of the text have a sink than of 1/50 of it",
            SECTION_5,
        ),
        *(
            most_models(
                f"1/{part}",
                HELD_OUT,
                f"1/{part} is enough",
                f"on validation windows most models of 1/{part} of the text have a sink",
                SECTION_5,
            )
            for part in (5, 20)
        ),
    ),
    shown=("sink_0", "sink_0/training", "loss", "train_loss"),
    not_at=dict.fromkeys(("mini", "paper"), "its seeds are fresh at nano"),
)
