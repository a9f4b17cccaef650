"""Questions about the optimiser [O2, O3, X20, X23]."""

from __future__ import annotations

from sinkscope.experiments.effects import below, gap, range_of, rising
from sinkscope.experiments.question import Question, Variation, above

TABLE_9 = "O2; Gu et al. 2025, Table 9"

learning_rate = Question(
    name="learning-rate",
    asks="Does a smaller learning rate weaken the sink, at equal steps?",
    rows=("O2",),
    source=TABLE_9,
    variations=(
        Variation("lr / 8", {"optimizer.lr": 5e-4}),
        Variation("lr / 4", {"optimizer.lr": 1e-3}, {"sink_0": 2.90}),
        Variation("lr", {}, {"sink_0": 18.18}),
    ),
    assertions=(
        above(
            0.0,
            rising("sink_0", ("lr / 8", "lr / 4", "lr")),
            "monotone",
            "the sink rate rises with the learning rate (1/8, 1/4 and all of it) at equal steps",
            f"{TABLE_9}: 2.90 at a quarter, 11.21 at a half, 18.18",
        ),
        above(
            1.0,
            gap("sink_0", "lr", "lr / 8"),
            "large",
            "an eighth of the rate costs more than 1 point",
            TABLE_9,
        ),
    ),
)

equal_product = Question(
    name="equal-product",
    asks="And where steps times learning rate is the same?",
    rows=("O2",),
    source=TABLE_9,
    variations=(
        Variation("lr, 750 steps", {"steps": 750}, {"sink_0": 23.44}),
        Variation("lr / 2, 1500 steps", {"optimizer.lr": 2e-3}, {"sink_0": 18.18}),
        Variation("lr / 4, 3000 steps", {"optimizer.lr": 1e-3, "steps": 3000}, {"sink_0": 16.81}),
    ),
    assertions=(
        above(
            0.0,
            rising("sink_0", ("lr / 4, 3000 steps", "lr / 2, 1500 steps", "lr, 750 steps")),
            "monotone",
            "the larger rate with fewer steps has the stronger sink",
            f"{TABLE_9}: 23.44 (8e-4, 10k), 18.18 (4e-4, 20k), 16.81 (2e-4, 40k)",
        ),
    ),
)

batch_size = Question(
    name="batch-size",
    asks="Does the batch size matter?",
    rows=("O3",),
    source="O3; Gu et al. 2025, Table 10",
    variations=(
        Variation("16", {"batch_size": 16, "steps": 3000}, {"sink_0": 17.19}),
        Variation("32", {}, {"sink_0": 18.18}),
        Variation("64", {"batch_size": 64, "steps": 750}, {"sink_0": 16.19}),
    ),
    assertions=(
        above(
            -5.0,
            lambda runs: -range_of("sink_0", ("16", "32", "64"))(runs),
            "little",
            "at equal tokens the rates lie within 5 points for batches of 16, 32 and 64 windows",
            "O3; Gu et al. 2025, Table 10: 16.19 to 18.18",
        ),
    ),
)

optimisers = Question(
    name="optimisers",
    asks="Which optimisers make massive activations?",
    rows=("X20", "X23"),
    source="X20, X23; Kaul et al. 2024; Guo et al. 2024",
    variations=(
        Variation("AdamW"),
        Variation("Adam with L2", {"optimizer.name": "adam"}),
        Variation("RMSProp", {"optimizer.name": "rmsprop", "optimizer.lr": 2e-3}),
        Variation("SGD with momentum", {"optimizer.name": "sgd", "optimizer.momentum": 0.9, "optimizer.lr": 0.5}),
        Variation("OrthoAdam", {"optimizer.name": "orthoadam"}),
        Variation("Muon", {"optimizer.name": "muon"}),
    ),
    assertions=(
        above(
            0.5,
            gap("norm_ratio", "AdamW", "OrthoAdam"),
            "OrthoAdam",
            "the first token's norm ratio is lower under OrthoAdam by more than 0.5",
            "X20; Kaul et al. 2024",
        ),
        above(
            0.5,
            gap("norm_ratio", "AdamW", "SGD with momentum"),
            "SGD",
            "and under SGD",
            "X23; Guo et al. 2024; Kaul et al. 2024",
        ),
        above(
            -2.0,
            below("norm_ratio", "SGD with momentum"),
            "none under SGD",
            "under SGD the first token is no more than twice as long as the others",
            "X23; Guo et al. 2024",
        ),
    ),
)

QUESTIONS = (learning_rate, equal_product, batch_size, optimisers)
