"""Questions about training at high rates: entropy, logits, and what bounds them.

The sources' claims are about instability. How high a rate a small model stands is part of the answer: a run that
diverges counts where a claim says so, and decides nothing elsewhere. Source: Zhai et al. 2023; Dehghani et al. 2023;
Wortsman et al. 2023a.
"""

from __future__ import annotations

from typing import Any

from sinkscope.experiments import Question, Variation, above
from sinkscope.experiments.effects import UNTRAINED, behind, gap
from sinkscope_replication.assertions import converges, keeps_sink
from sinkscope_replication.questions.variations import relative, times

ZHAI = "Zhai et al. 2023"
REPARAM = "Zhai et al. 2023"
DEHGHANI = "Dehghani et al. 2023; Wortsman et al. 2023a"
HIGH = {"optimizer.lr": times(4.0)}
HIGHER = {"optimizer.lr": times(8.0)}
SIGMA: dict[str, Any] = {"model.weight_reparam": "sigma"}
QK_NORM: dict[str, Any] = {"attention": "qk_norm"}

entropy_collapse = Question(
    name="entropy-collapse",
    asks="Does attention lose its entropy at high learning rates, and training its stability?",
    source=ZHAI,
    variations=(Variation("lr"), Variation("lr x 4", HIGH), Variation("lr x 8", HIGHER)),
    assertions=(
        above(
            0.3,
            behind("lr x 8", "lr"),
            "unstable",
            "at eight times the rate the loss ends more than 0.3 nats higher (a run that diverged counts as "
            f"{UNTRAINED:g} nats above)",
            ZHAI,
        ),
        above(
            0.1,
            gap("entropy_least", "lr", "lr x 4"),
            "lower entropy",
            "at four times the rate the head with the least entropy has less of it, by more than 0.1 nats",
            ZHAI,
        ),
        above(
            0.1,
            gap("entropy", "lr", "lr x 4"),
            "lower entropy on average",
            "at four times the rate the average head has less entropy, by more than 0.1 nats",
            ZHAI,
        ),
    ),
    base=relative,
)

sigma_reparam = Question(
    name="sigma-reparam",
    asks="Does sigma-reparametrization keep the entropy up at high learning rates?",
    source=REPARAM,
    variations=(
        Variation("lr"),
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
            "than 0.1 nats",
            REPARAM,
        ),
        above(
            0.0,
            gap("loss", "lr x 4", "sigma, lr x 4"),
            "better",
            "at four times the rate the validation loss is lower with the reparametrization",
            REPARAM,
        ),
        converges("sigma, lr x 4", "sigma, lr", REPARAM),
    ),
    base=relative,
)

logit_growth = Question(
    name="logit-growth",
    asks="Do attention logits grow with the learning rate, and does qk-norm hold them?",
    source=DEHGHANI,
    variations=(
        Variation("lr"),
        Variation("lr x 4", HIGH),
        Variation("qk-norm, lr", QK_NORM),
        Variation("qk-norm, lr x 4", QK_NORM | HIGH),
    ),
    assertions=(
        above(
            0.0,
            gap("max_logit", "lr x 4", "lr"),
            "they grow",
            "the largest logit is larger at four times the rate",
            DEHGHANI,
        ),
        above(
            0.0,
            gap("max_logit", "lr", "qk-norm, lr"),
            "held",
            "at the usual rate the largest logit is smaller with qk-norm",
            DEHGHANI,
        ),
        above(
            0.0,
            gap("max_logit", "lr x 4", "qk-norm, lr x 4"),
            "held at high rates",
            "at four times the rate, too, the largest logit is smaller with qk-norm",
            DEHGHANI,
        ),
        above(
            0.0,
            gap("loss", "lr x 4", "qk-norm, lr x 4"),
            "better",
            "at four times the rate the validation loss is lower with qk-norm",
            DEHGHANI,
        ),
        *keeps_sink("qk-norm, lr", "lr", "our question: the sources report no sink rates"),
    ),
    base=relative,
)

QUESTIONS = (entropy_collapse, sigma_reparam, logit_growth)
