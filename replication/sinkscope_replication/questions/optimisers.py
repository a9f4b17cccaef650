"""Which optimizers make outliers and massive activations?"""

from __future__ import annotations

from sinkscope.experiments import FromRecipe, Question, Variation, above_ratio, log_ratio

STUDY = FromRecipe(job="replication")
NEW_BASE = range(13, 25)
NEW = range(13, 19)
KAUL = "Kaul et al. 2024, GPT-2 of 130M, from third parties' notes"
MOMENTUM = {"optimizer.name": "sgd", "optimizer.momentum": 0.9, "optimizer.lr": 0.5}

QUESTION = Question(
    name="optimisers",
    asks="Which optimizers make outliers and massive activations?",
    source="Kaul et al. 2024; Guo et al. 2024a",
    base=STUDY,
    seeds=NEW,
    variations=(
        Variation("AdamW", {}, {"kurtosis": 140.0}, seeds=NEW_BASE),
        Variation("Adam with L2", {"optimizer.name": "adam"}),
        Variation("RMSProp", {"optimizer.name": "rmsprop", "optimizer.lr": 2e-3}, {"kurtosis": 70.5}),
        Variation("SGD", {"optimizer.name": "sgd", "optimizer.lr": 0.5}, {"kurtosis": 3.2}),
        Variation("SGD with momentum", MOMENTUM, {"kurtosis": 5.0}),
        Variation("OrthoAdam", {"optimizer.name": "orthoadam"}, {"kurtosis": 3.0}),
        Variation("Muon", {"optimizer.name": "muon"}),
    ),
    assertions=tuple(
        above_ratio(
            1.25,
            log_ratio("kurtosis", "AdamW", other),
            f"{other}: fewer outliers",
            f"the kurtosis of hidden states, at the depth where it is largest, is more than 1.25 times as large with "
            f"AdamW as with {other}",
            KAUL,
        )
        for other in ("OrthoAdam", "SGD with momentum")
    ),
    not_at=dict.fromkeys(("mini", "paper"), "its learning rates are multiples of nano's"),
)
