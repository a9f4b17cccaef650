"""Do the length of the text and the threshold decide which model has the stronger sink?"""

from __future__ import annotations

from sinkscope.experiments import FromRecipe, Question, Variation, above_ratio, log_quotient, rising, times

STUDY = FromRecipe(job="replication")
BASE = range(13)
FIGURE_3 = "Gu et al. 2025, Figure 3"

QUESTION = Question(
    name="metric",
    asks="Do the length of the text and the threshold decide which model has the stronger sink?",
    source=FIGURE_3,
    base=STUDY,
    seeds=6,
    variations=(
        Variation("lr / 8", {"optimizer.lr": times(1 / 8)}),
        Variation("lr / 4", {"optimizer.lr": times(1 / 4)}, {"sink_0": 2.90, "loss": 3.92}),
        Variation("lr", {}, {"sink_0": 18.18, "loss": 3.73}, seeds=BASE),
    ),
    assertions=(
        above_ratio(
            1.0,
            log_quotient("lr", "sink_mass/tokens=32", "sink_mass/tokens=128"),
            "falls with length",
            "the sink mass on 32 tokens is larger than on 128",
            FIGURE_3,
        ),
        *(
            above_ratio(
                1.0,
                rising(f"sink_mass/tokens={tokens}", ("lr / 8", "lr / 4", "lr"), log=True),
                f"same order on {tokens} tokens",
                f"on {tokens} tokens the sink mass rises with the learning rate of training (1/8, 1/4, all)",
                FIGURE_3,
            )
            for tokens in (32, 128)
        ),
    ),
)
