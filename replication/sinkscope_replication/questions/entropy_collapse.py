"""Does attention lose its entropy at high learning rates, and training its stability?"""

from __future__ import annotations

from sinkscope.experiments import FromRecipe, Has, Question, Variation, above, gap, most_models, times

STUDY = FromRecipe(job="replication")

NEW_BASE, NEW = range(13, 25), range(13, 19)

ZHAI = "Zhai et al. 2023"
HIGH = {"optimizer.lr": times(4.0)}
LR = Variation("lr", seeds=NEW_BASE)

QUESTION = Question(
    name="entropy-collapse",
    asks="Does attention lose its entropy at high learning rates, and training its stability?",
    source=ZHAI,
    base=STUDY,
    seeds=NEW,
    variations=(LR, Variation("lr x 4", HIGH), Variation("lr x 8", {"optimizer.lr": times(8.0)}, seeds=range(13, 20))),
    assertions=(
        above(
            0.1,
            gap("entropy_least", "lr", "lr x 4"),
            "lower entropy",
            "at four times the rate the head with the least entropy has less of it, by more than .1 nats",
            ZHAI,
            symmetric=True,
        ),
        most_models(
            "lr x 8",
            Has("loss", 3.4, diverged=True),
            "unstable",
            "at eight times the rate most models diverge or end with a loss of 3.4 nats and more",
            ZHAI,
        ),
    ),
)
