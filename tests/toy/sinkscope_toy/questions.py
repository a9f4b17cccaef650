"""A question: what the package's own operation does to sinks. Nothing here needs torch."""

from __future__ import annotations

import sinkscope as ss
from sinkscope.experiments import Question, Variation, above, gap

ss.question(
    Question(
        name="toy-powers",
        asks="Does a sink need an exponential?",
        source="the template of docs/extending.md",
        variations=(Variation("softmax"), Variation("powers", {"attention": "toy_powered"})),
        assertions=(
            above(1.0, gap("sink_0", "softmax", "powers"), "lower", "fewer sinks without it, by 1 point", "our own"),
        ),
    )
)
