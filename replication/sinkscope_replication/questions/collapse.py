"""Does a sink keep a model's tokens from becoming alike?"""

from __future__ import annotations

from sinkscope.experiments import FromRecipe, Question, Variation, above_ratio, log_ratio

STUDY = FromRecipe(job="replication")
BASE = range(13)
BARBERO = "Barbero et al. 2025"

QUESTION = Question(
    name="collapse",
    asks="Does a sink keep a model's tokens from becoming alike?",
    source=BARBERO,
    base=STUDY,
    seeds=6,
    variations=(
        Variation("softmax", {"attention": "softmax"}, {"sink_0": 18.18, "loss": 3.73}, BASE),
        Variation("no fixed token", {"data.bos": "none"}),
    ),
    assertions=tuple(
        above_ratio(
            1.05,
            log_ratio(metric, "softmax", "no fixed token"),
            name,
            f"after the last block {what} are further apart, as a share of their length, with a fixed BOS than "
            "without, by more than 5 %",
            BARBERO,
        )
        for name, metric, what in (
            ("rank", "relative_spread", "all tokens but the first"),
            ("representations", "relative_pair_distance", "the last two tokens"),
        )
    ),
    not_at={"paper": "the paper trains without a fixed BOS"},
)
