"""Questions about the loss: decay, prefix, window [L1, L2, L3]."""

from __future__ import annotations

from sinkscope.experiments.effects import gap, level, peak
from sinkscope.experiments.question import Question, Variation, above

TABLE_2 = "L1; Gu et al. 2025, Table 2"


def _window(size: int) -> dict[str, object]:
    mask = {"kind": "and", "first": {"kind": "causal"}, "second": {"kind": "window", "size": size}}
    return {"attention": {"mask": mask}}


weight_decay = Question(
    name="weight-decay",
    asks="Is the sink strongest at a moderate weight decay?",
    rows=("L1",),
    source=TABLE_2,
    variations=tuple(
        Variation(f"{decay:g}", {} if decay == 0.1 else {"optimizer.weight_decay": decay}, {"sink_0": published})
        for decay, published in ((0.0, 15.20), (0.1, 18.18), (0.5, 41.08), (2.0, 6.13))
    ),
    assertions=(
        above(
            0.0,
            peak("sink_0", ("0", "0.1", "0.5", "2"), at="0.5"),
            "peak",
            "of 0, 0.1, 0.5 and 2 a decay of 0.5 has the highest sink rate",
            f"{TABLE_2}: 15.20, 18.18, 41.08, 6.13 %",
        ),
        above(
            1.0,
            gap("sink_0", "0.1", "2"),
            "too much",
            "a decay of 2 lowers the rate by more than 1 point against 0.1",
            TABLE_2,
        ),
        above(3.0, level("sink_0", "0"), "not needed", "without decay there is a sink (more than 3 %)", TABLE_2),
    ),
)

prefix = Question(
    name="prefix",
    asks="Where is the sink in prefix language modelling?",
    rows=("L2",),
    source="L2; Gu et al. 2025, section 6",
    variations=(Variation("causal"), Variation("prefix of 5", {"loss.prefix": 5})),
    assertions=(
        above(
            3.0,
            lambda runs: max(runs["prefix of 5"][f"sink_{position}"] for position in range(5)),
            "in the prefix",
            "with a prefix of 5 tokens more than 3 % of heads have their sink on one of them",
            "L2; Gu et al. 2025, section 6",
        ),
    ),
)

window = Question(
    name="window",
    asks="Does a short window prevent the sink?",
    rows=("L3",),
    source="L3; Gu et al. 2025, section 6",
    variations=(Variation("causal"), Variation("window of 16", _window(16)), Variation("window of 64", _window(64))),
    assertions=(
        above(
            1.0,
            gap("sink_0", "causal", "window of 16"),
            "short",
            "a window of 16 tokens has a lower sink rate than full causal attention, by more than 1 point",
            "L3; Gu et al. 2025, section 6",
        ),
        above(
            0.0,
            gap("sink_0", "window of 64", "window of 16"),
            "grows",
            "a window of 64 has a higher rate than one of 16",
            "L3; Gu et al. 2025, section 6",
        ),
    ),
)

QUESTIONS = (weight_decay, prefix, window)
