"""Questions about how a finished model is read: metric and input [C1, C7, C10, K2]."""

from __future__ import annotations

from sinkscope.experiments.effects import gap, metric_gap, rising_metrics
from sinkscope.experiments.question import Question, Variation, above

SOFTMAX = (Variation("softmax"),)

metric = Question(
    name="metric",
    asks="How does the sink rate depend on threshold and length?",
    rows=("C1",),
    source="C1; Gu et al. 2025, Figure 3",
    variations=SOFTMAX,
    assertions=(
        above(
            -1e-9,
            rising_metrics("softmax", [f"sink_0/epsilon={epsilon:g}" for epsilon in (0.5, 0.4, 0.3, 0.2)]),
            "threshold",
            "the rate rises as the threshold falls from 0.5 to 0.2",
            "C1; by definition",
        ),
        above(
            0.0,
            rising_metrics("softmax", [f"sink_0/tokens={tokens}" for tokens in (128, 64, 32)]),
            "length",
            "the rate falls as the text grows from 32 to 128 tokens",
            "C1; Gu et al. 2025, Figure 3",
        ),
    ),
    not_at={"paper": "its lengths are those of nano and mini"},
)

inputs = Question(
    name="inputs",
    asks="Does the sink need natural text?",
    rows=("C7", "K2"),
    source="C7; Gu et al. 2025, Table 1",
    variations=(Variation("softmax", {}, {"sink_0": 92.47, "sink_0/random": 90.13, "sink_0/repeated": 0.0}),),
    assertions=(
        above(
            1.0,
            metric_gap("softmax", "sink_0", "sink_0/repeated"),
            "not on repetition",
            "a repeated token has a lower rate than text, by more than 1 point, under rotary positions",
            "C7; Gu et al. 2025, Table 1 (LLaMA2-7B: 92.47, 90.13, 0 %)",
        ),
        above(
            3.0,
            metric_gap("softmax", "sink_0", "sink_0/without_first"),
            "needs its BOS",
            "a model trained with a fixed BOS loses more than 3 points without it",
            "K2; slides of Gu et al.: 90.84 to 0.05 %",
        ),
        above(
            0.1,
            metric_gap("softmax", "loss/without_first", "loss"),
            "and its loss",
            "and its loss rises by more than 0.1 nats",
            "K2; slides of Gu et al.: 2.69 to 7.56",
        ),
    ),
    not_at={"paper": "the paper trains without a fixed BOS"},
)

emergence = Question(
    name="emergence",
    asks="When does the sink emerge in training?",
    rows=("C10", "O1"),
    source="C10; Gu et al. 2025, Figure 4",
    variations=tuple(Variation(f"{steps} steps", {"steps": steps}) for steps in (375, 750, 1500)),
    assertions=(
        above(
            1.0,
            gap("sink_0", "1500 steps", "375 steps"),
            "after the start",
            "1,500 steps have a higher rate than 375, by more than 1 point",
            "C10; Gu et al. 2025, Figure 4",
        ),
        above(
            0.5,
            gap("loss", "375 steps", "1500 steps"),
            "as the loss falls",
            "the loss falls by more than 0.5 nats in between",
            "C10; Gu et al. 2025, Figure 4",
        ),
    ),
)

QUESTIONS = (metric, inputs, emergence)
