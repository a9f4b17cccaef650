"""Do attention logits grow with the learning rate, and does qk-norm hold them?"""

from __future__ import annotations

from sinkscope.experiments import FromRecipe, Question, Variation, above_ratio, log_ratio, times

STUDY = FromRecipe(job="replication")

NEW_BASE, NEW = range(13, 25), range(13, 19)

DEHGHANI = "Dehghani et al. 2023; Wortsman et al. 2023a"
HIGH = {"optimizer.lr": times(4.0)}
QK_NORM = {"attention": "qk_norm"}
LR = Variation("lr", seeds=NEW_BASE)

QUESTION = Question(
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
