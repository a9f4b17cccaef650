"""Is there a sink where norms follow the blocks' sums?"""

from __future__ import annotations

from sinkscope.experiments import FromRecipe, Has, Question, Variation, most_models

STUDY = FromRecipe(job="replication")
BASE = range(13)
SINK = Has("sink_0", 3.0)
SECTION_7 = "Gu et al. 2025, section 7"

QUESTION = Question(
    name="post-norm",
    asks="Is there a sink where norms follow the blocks' sums?",
    source=SECTION_7,
    base=STUDY,
    seeds=range(3, 10),
    variations=(
        Variation("softmax", {"attention": "softmax"}, {"sink_0": 18.18, "loss": 3.73}, BASE),
        Variation("post-norm", {"model.norm_placement": "post"}, {"sink_0": 13.54, "norm_ratio": 80.0}),
    ),
    assertions=(
        most_models("post-norm", SINK, "a sink", "most models with post-norm have a sink", f"{SECTION_7}: 13.54 %"),
        most_models(
            "post-norm",
            Has("norm_ratio", 4.0),
            "massive before the norm",
            "in most models the first token is 4 times as long as the others before a norm of the stream",
            "Gu et al. 2025, Figure 7",
        ),
    ),
)
