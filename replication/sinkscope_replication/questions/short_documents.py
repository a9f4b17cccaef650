"""Masks between documents, and where the BOS is, on short documents.

Conversations have a median of 47 tokens, so that a window of 128 holds three: masks hide something in every window, and
a BOS before each document is often seen, which the corpus of the base, with a document in 2 % of windows, cannot show.
All models are read on the beginning of one conversation: in a window of several, queries that masks hide the first
token from would count as giving it nothing. That masks lower the sink of models without a BOS (65.15 to 28.23 % on the
slides) is not asked: such models have none here.
"""

from __future__ import annotations

from sinkscope.experiments import FromRecipe, Has, Question, Variation, more_models, most_models

STUDY = FromRecipe(job="replication")
SLIDES = "slides of Gu et al. 2025; Barbero et al. 2025, Table 2"
FRESH, SEVEN = range(13, 19), range(13, 20)  # six of six against half of the models is p = .016, seven of seven .008
SHORT = {"data.corpus": "python:chat"}
NO_BOS = {"data.bos": "none"}
MASKED = {"data.packing": "intra_document"}
AFTER_BOS = Has("sink_0/document_after_bos", 3.0)
LOST = Has("sink_0/document_after_bos", 3.0, minus="sink_0/document")

QUESTION = Question(
    name="short-documents",
    asks="Where documents are short, what do masks between them and a BOS before each of them do to the sink?",
    source=SLIDES,
    base=STUDY,
    seeds=FRESH,
    shared=SHORT,
    variations=(
        Variation(
            "causal, fixed BOS", {}, {"sink_0/document_after_bos": 90.84, "sink_0/document": 0.05, "loss": 2.69}, SEVEN
        ),
        Variation("intra-document", {**NO_BOS, **MASKED}, {"sink_0/document": 28.23, "loss": 2.67}),
        Variation(
            "intra-document, BOS",
            {**NO_BOS, **MASKED, "data.document_bos": True},
            {"sink_0/document": 50.24, "sink_0/document_after_bos": 83.33, "loss": 2.68},
        ),
        Variation(
            "intra-document, fixed BOS",
            {**MASKED, "data.document_bos": True},
            {"sink_0/document_after_bos": 90.56, "sink_0/document": 0.0, "loss": 2.67},
            SEVEN,
        ),
    ),
    assertions=(
        more_models(
            "intra-document, BOS",
            "intra-document",
            AFTER_BOS,
            "on the BOS",
            "more models have a sink on the BOS where training puts one before each document than where it puts none",
            SLIDES,
        ),
        most_models(
            "causal, fixed BOS",
            LOST,
            "needs its BOS",
            "most models with a fixed BOS lose 3 points of their sink rate without it",
            SLIDES,
        ),
        most_models(
            "intra-document, fixed BOS",
            LOST,
            "needs its BOS under masks too",
            "most models whose documents do not see each other lose 3 points of their sink rate without the fixed BOS",
            SLIDES,
        ),
    ),
    not_at=dict.fromkeys(("mini", "paper"), "its seeds are fresh at nano"),
)
