"""Where no BOS is fixed, what does intra-document masking do?"""

from __future__ import annotations

from sinkscope.experiments import FromRecipe, Question, Variation, above_ratio, rising

STUDY = FromRecipe(job="replication")
SLIDES = "slides of Gu et al. 2025"

NO_BOS = (
    "nano has no sink without its fixed BOS in 1,500 steps, and a document begins in 2 % of its windows of 128 tokens, "
    "so that masks hide nothing in the others"
)

WITHOUT_BOS = {"data.bos": "none"}

QUESTION = Question(
    name="packing-without-bos",
    asks="Where no BOS is fixed, what does intra-document masking do?",
    source=SLIDES,
    base=STUDY,
    seeds=6,
    shared=WITHOUT_BOS,
    variations=(
        Variation("causal", {}, {"sink_0": 65.15, "sink_0/with_bos": 65.10, "loss": 2.70, "loss/with_bos": 2.69}),
        Variation("intra-document", {"data.packing": "intra_document"}, {"sink_0": 28.23, "loss": 2.67}),
    ),
    assertions=(
        above_ratio(
            1.25,
            rising("sink_mass", ("intra-document", "causal"), log=True),
            "masking lowers it",
            "the sink mass is more than 1.25 times as large where documents see each other",
            SLIDES,
        ),
    ),
    not_at={"nano": NO_BOS},
)
