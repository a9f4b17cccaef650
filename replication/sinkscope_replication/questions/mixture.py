"""Questions about which text a model learns from, and how it is packed.

Source: Gu et al. 2025, section 5 and appendix; slides of Gu et al. 2025; Barbero et al. 2025.
"""

from __future__ import annotations

import math

from sinkscope.experiments import (
    FromRecipe,
    Has,
    Observed,
    Question,
    Variation,
    above,
    above_ratio,
    gap,
    more_models,
    most_models,
    rising,
)

STUDY = FromRecipe(job="replication")
BASE, NEW_BASE, NEW = range(13), range(13, 25), range(13, 19)
SINK = Has("sink_0", 3.0)
SECTION_5, SLIDES = "Gu et al. 2025, section 5", "slides of Gu et al. 2025"
NO_BOS = (
    "nano has no sink without its fixed BOS in 1,500 steps, and a document begins in 2 % of its windows of 128 tokens, "
    "so that masks hide nothing in the others"
)
LONG_DOCUMENTS = "a document begins in 2 % of nano's windows of 128 tokens, and so at their start in .02 %"
WITHOUT_BOS = {"data.bos": "none"}
DOMAINS = ("numpy", "stdlib", "topics", "torch", "transformers")
NANO_ONLY = dict.fromkeys(("mini", "paper"), "contexts and batch sizes are those of nano")

amount = Question(
    name="data-amount",
    asks="Does the sink need much text?",
    source=SECTION_5,
    base=STUDY,
    seeds=range(3, 10),
    variations=(
        Variation("all", {}, {"sink_0": 18.18}, seeds=BASE),
        Variation("1/20", {"data.train_share": 0.05}),
        Variation("1/100", {"data.train_share": 0.01}),
        Variation("1/700", {"data.train_share": 0.0014}, seeds=(3, 4, 5)),
    ),
    assertions=(
        more_models(
            "all",
            "1/700",
            SINK,
            "needs text",
            "more models have a sink with all of the text than with 1/700 of it, some 200 passes",
            SECTION_5,
        ),
        most_models(
            "1/20",
            SINK,
            "a twentieth is enough",
            "most models have a sink with 1/20 of the text",
            SECTION_5,
        ),
        above(
            1.0,
            gap("gap", "1/100", "all"),
            "less overfits",
            "with 1/100 of the text validation loss minus training loss is larger by more than 1 nat",
            SECTION_5,
            symmetric=True,
        ),
    ),
    note="Read on validation text, where a model of 1/700 of the text ends 9 nats above one of all of it: that it has "
    "no sink there does not tell little data from overfitting.",
)


def alike(run: Observed) -> bool | None:
    """Whether the sink rate differs by at most 4 points over the domains of the corpus `python`."""
    rates = [run[f"sink_0/domain={domain}"] for domain in DOMAINS]
    return None if any(map(math.isnan, rates)) else max(rates) - min(rates) <= 4.0


domains = Question(
    name="domains",
    asks="Does the sink rate depend on the domain of the text it is measured on?",
    source="Gu et al. 2025, appendix",
    base=STUDY,
    seeds=BASE,
    variations=(Variation("softmax"),),
    assertions=(
        most_models(
            "softmax",
            alike,
            "hardly",
            f"in most models the rate differs by at most 4 points over {', '.join(DOMAINS)}",
            "Gu et al. 2025: negligible over 17 domains of the Pile at thresholds of .2 and .3",
        ),
    ),
    not_at={"paper": "its corpus, streamed from the hub, has no domains"},
)

KINDS_OF_TEXT = ("code", "prose", "half of each")

mixtures = Question(
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

PACKED = {"data.packing": "intra_document", "data.document_bos": True}
DOCUMENTS = "intra-document, BOS"

packing = Question(
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

without_bos = Question(
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

document_bos = Question(
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

context = Question(
    name="context",
    asks="Does a longer context make a stronger sink, at equal tokens?",
    source="Barbero et al. 2025",
    base=STUDY,
    seeds=NEW,
    variations=(
        Variation("64", {"context": 64, "batch_size": 64}),
        Variation("128", {}, {"sink_0": 0.0}, seeds=NEW_BASE),
        Variation("256", {"context": 256, "batch_size": 16}),
    ),
    assertions=(
        above_ratio(
            1.25,
            rising("sink_mass", ("64", "128", "256"), log=True),
            "monotone",
            "the sink mass on 64 tokens rises more than 1.25 times from a context of 64 to 256",
            "Barbero et al. 2025: rates of about 0 at 128, about 36 % at 2048, without a fixed BOS",
        ),
    ),
    not_at=NANO_ONLY,
)

QUESTIONS = (amount, domains, mixtures, packing, without_bos, document_bos, context)
