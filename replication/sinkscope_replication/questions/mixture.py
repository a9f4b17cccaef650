"""Does the sink depend on the kind of text that a model learns from?"""

from __future__ import annotations

from sinkscope.experiments import FromRecipe, Has, Question, Variation, most_models

STUDY = FromRecipe(job="replication")
NEW_BASE = range(13, 25)
NEW = range(13, 19)
SINK = Has("sink_0", 3.0)
KINDS_OF_TEXT = ("code", "prose", "half of each")

QUESTION = Question(
    name="mixture",
    asks="Does the sink depend on the kind of text that a model learns from?",
    source="our question",
    base=STUDY,
    seeds=NEW,
    variations=(
        Variation("whole", seeds=NEW_BASE),
        Variation("code", {"data.mixture": {"python:code": 1.0}}),
        Variation("prose", {"data.mixture": {"python:prose": 1.0}}),
        Variation("half of each", {"data.mixture": {"python:code": 0.5, "python:prose": 0.5}}),
    ),
    assertions=(
        most_models(
            KINDS_OF_TEXT, SINK, "always", "most models have a sink on code, prose and half of each", "our question"
        ),
    ),
    not_at={"paper": "its corpus, streamed from the hub, has no domains"},
)
