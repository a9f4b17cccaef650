"""Does a fixed BOS make the sink, whether or not documents see each other?"""

from __future__ import annotations

from sinkscope.experiments import FromRecipe, Has, Question, Variation, most_models

STUDY = FromRecipe(job="replication")
SLIDES = "slides of Gu et al. 2025"
PACKED = {"data.packing": "intra_document", "data.document_bos": True}

QUESTION = Question(
    name="packing",
    asks="Does a fixed BOS make the sink, whether or not documents see each other?",
    source=SLIDES,
    base=STUDY,
    seeds=range(13, 20),
    shared={"data.bos": "fixed"},
    variations=(
        Variation(
            "causal, fixed BOS",
            {},
            {"sink_0": 90.84, "sink_0/without_first": 0.05, "loss": 2.69, "loss/without_first": 7.56},
        ),
        Variation(
            "intra-document, fixed BOS",
            PACKED,
            {"sink_0": 90.56, "sink_0/without_first": 0.0, "loss": 2.67, "loss/without_first": 7.78},
        ),
    ),
    assertions=(
        most_models(
            "intra-document, fixed BOS",
            Has("sink_0", 3.0, minus="sink_0/without_first"),
            "needs its BOS",
            "most models whose documents do not see each other lose 3 points of their sink rate without the BOS",
            SLIDES,
        ),
    ),
)
