"""Does sigma-reparametrization keep the entropy up at high learning rates?"""

from __future__ import annotations

from sinkscope.experiments import FromRecipe, Question, Variation, above, gap, times

STUDY = FromRecipe(job="replication")

NEW_BASE, NEW = range(13, 25), range(13, 19)

ZHAI = "Zhai et al. 2023"
HIGH = {"optimizer.lr": times(4.0)}
SIGMA = {"model.weight_reparam": "sigma"}
LR = Variation("lr", seeds=NEW_BASE)

QUESTION = Question(
    name="sigma-reparam",
    asks="Does sigma-reparametrization keep the entropy up at high learning rates?",
    source=ZHAI,
    base=STUDY,
    seeds=NEW,
    variations=(
        LR,
        Variation("lr x 4", HIGH),
        Variation("sigma, lr", SIGMA),
        Variation("sigma, lr x 4", SIGMA | HIGH),
    ),
    assertions=(
        above(
            0.1,
            gap("entropy_least", "sigma, lr x 4", "lr x 4"),
            "more entropy",
            "at four times the rate the head with the least entropy has more of it with the reparametrization, by more "
            "than .1 nats",
            ZHAI,
            symmetric=True,
        ),
        above(
            0.0,
            gap("loss", "lr x 4", "sigma, lr x 4"),
            "better",
            "at four times the rate the validation loss is lower with the reparametrization",
            ZHAI,
            symmetric=True,
        ),
    ),
)
