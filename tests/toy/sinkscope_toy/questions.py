"""A question: what the package's own operation does to sinks. Nothing here needs torch."""

from __future__ import annotations

import sinkscope as ss
from sinkscope.experiments import Has, Question, Variation, more_models

ss.question(
    Question(
        name="toy-powers",
        asks="Does a sink need an exponential?",
        source="the template of docs/extending.md",
        variations=(Variation("softmax"), Variation("powers", {"attention": "toy_powered"})),
        assertions=(
            more_models(
                "softmax", "powers", Has("sink_0", 3.0), "fewer", "fewer models have a sink without it", "our own"
            ),
        ),
        seeds=6,
    )
)
