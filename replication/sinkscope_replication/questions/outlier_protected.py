"""Does a block without norms, with damped branches and normalized queries and keys, avoid outliers?"""

from __future__ import annotations

from sinkscope.experiments import FromRecipe, Question, Variation, above_ratio, log_ratio

STUDY = FromRecipe(job="replication")
NEW_BASE = range(13, 25)
NEW = range(13, 19)
HE = "He et al. 2024, from third parties' notes"
PROTECTED = {"attention": "qk_norm", "model.norm_placement": "outlier_protected", "model.ffn": "relu"}

QUESTION = Question(
    name="outlier-protected",
    asks="Does a block without norms, with damped branches and normalized queries and keys, avoid outliers?",
    source=HE,
    base=STUDY,
    seeds=NEW,
    variations=(Variation("softmax", seeds=NEW_BASE), Variation("protected", PROTECTED)),
    assertions=(
        above_ratio(
            1.25,
            log_ratio("kurtosis", "softmax", "protected"),
            "fewer outliers",
            "the kurtosis of hidden states is more than 1.25 times as large with softmax's usual block",
            HE,
        ),
    ),
)
