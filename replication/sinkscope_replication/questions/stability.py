"""Questions about training at high rates: entropy, logits, and what bounds them.

Source: Zhai et al. 2023; Dehghani et al. 2023; Wortsman et al. 2023a.
"""

from __future__ import annotations

from sinkscope.experiments import (
    FromRecipe,
    Has,
    Question,
    Variation,
    above,
    above_ratio,
    gap,
    log_ratio,
    most_models,
    times,
)

STUDY = FromRecipe(job="replication")
NEW_BASE, NEW = range(13, 25), range(13, 19)
ZHAI, DEHGHANI = "Zhai et al. 2023", "Dehghani et al. 2023; Wortsman et al. 2023a"
HIGH = {"optimizer.lr": times(4.0)}
SIGMA = {"model.weight_reparam": "sigma"}
QK_NORM = {"attention": "qk_norm"}
LR = Variation("lr", seeds=NEW_BASE)

entropy_collapse = Question(
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

sigma_reparam = Question(
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

logit_growth = Question(
    name="logit-growth",
    asks="Do attention logits grow with the learning rate, and does qk-norm hold them?",
    source=DEHGHANI,
    base=STUDY,
    seeds=NEW,
    variations=(
        LR,
        Variation("lr x 4", HIGH),
        Variation("qk-norm, lr", QK_NORM),
        Variation("qk-norm, lr x 4", QK_NORM | HIGH),
    ),
    assertions=(
        above_ratio(
            1.0,
            log_ratio("max_logit", "lr x 4", "lr"),
            "they grow",
            "the largest logit is larger at four times the rate",
            DEHGHANI,
        ),
        above_ratio(
            1.0,
            log_ratio("max_logit", "lr x 4", "qk-norm, lr x 4"),
            "held",
            "at four times the rate the largest logit is smaller with qk-norm",
            DEHGHANI,
        ),
    ),
)

QUESTIONS = (entropy_collapse, sigma_reparam, logit_growth)
