"""Does a BOS before each document, wherever that stands in a window, take the sink?"""

from __future__ import annotations

from sinkscope.experiments import FromRecipe, Has, Question, Variation, most_models

STUDY = FromRecipe(job="replication")
SLIDES = "slides of Gu et al. 2025"
LONG_DOCUMENTS = "a document begins in 2 % of nano's windows of 128 tokens, and so at their start in .02 %"
WITHOUT_BOS = {"data.bos": "none"}
PACKED = {"data.packing": "intra_document", "data.document_bos": True}
DOCUMENTS = "intra-document, BOS"

QUESTION = Question(
    name="document-bos",
    asks="Does a BOS before each document, wherever that stands in a window, take the sink?",
    source=SLIDES,
    base=STUDY,
    seeds=7,
    shared=WITHOUT_BOS,
    variations=(Variation(DOCUMENTS, PACKED, {"sink_0": 50.24, "sink_0/with_bos": 83.33, "loss": 2.68}),),
    assertions=(
        most_models(
            DOCUMENTS,
            Has("sink_0/with_bos", 3.0),
            "on the BOS",
            "most models whose documents begin with a BOS have a sink there",
            SLIDES,
        ),
    ),
    not_at={"nano": LONG_DOCUMENTS},
)
