"""The statements of the paper's abstract, introduction, sections and slides, in its order.

Numbers are the paper's: sink rates in percent at a threshold of 0.3 on 64 tokens, validation losses in nats, of its
60M model unless said otherwise.
"""

from __future__ import annotations

from sinkscope_replication.paper.architecture import ARCHITECTURE, SLIDES
from sinkscope_replication.paper.said import Said

NEEDS_WEIGHTS = "it is about released models, whose weights this machine cannot get; `sinkscope measure` reads them"
NEEDS_NODE = "a model of 1.1 billion parameters reads 42 billion tokens: GPU nodes; the recipe `1b` repeats it"

ABSTRACT = (
    Said(
        "Even small models have attention sinks (ours with a fixed BOS)",
        "abstract; Table 8",
        "from 14M parameters on",
        ("sink-head/in a small model",),
    ),
    Said(
        "Inputs of all kinds show the sink, random tokens too (ours behind the BOS)",
        "abstract; Table 1",
        "92.47 on text, 90.13 on random tokens (LLaMA2-7B)",
        ("inputs/*random text*",),
    ),
    Said(
        "The sink emerges during pre-training, as the model is optimized",
        "abstract; section 4, Figure 4",
        "between 1,000 and 2,000 of 20,000 steps",
        ("emergence/after the start*",),
    ),
    Said(
        "It takes enough training data",
        "abstract; section 5",
        "below 1 with 50M and 100M tokens",
        ("data-amount/needs text*",),
    ),
    Said(
        "Where the sink stands follows the data: a token fixed at position k takes it there",
        "abstract; Table 10",
        "74.11 at k = 1, 69.64 at k = 3",
        ("fixed-token/stands out*", "fixed-token/follows", "fixed-token/strong*"),
    ),
    Said(
        "It follows the loss: with prefix language modeling the sink stands within the prefix",
        "abstract; section 6",
        "",
        ("prefix-longer/behind the first*", "prefix-longer/not behind it*", "prefix-longer/in the prefix*", "prefix/*"),
    ),
    Said(
        "The sink acts like a key bias: a learned key takes the attention",
        "abstract; Table 4",
        "Sink_* 73.34",
        ("biases-without-bos/k_bias: *the bias*", "biases/k_bias: *the bias*"),
    ),
    Said(
        "The sink adds nothing to the values: a head writes little while it attends to it",
        "abstract; section 7; slides",
        "",
        ("no-op/less than half", "no-op/less on the sink"),
    ),
    Said(
        "It stems from softmax's normalization: sigmoid attention without it has no sink",
        "abstract; Table 6",
        "18.18 and 0.44",
        (
            "sigmoid-at-equal-loss/*: none",
            "sigmoid-at-equal-loss/*: no mass",
            "normalisation/none",
            "normalisation/no mass",
            "sigmoid-at-equal-loss/*less mass*",
            "normalisation/sigmoid: less mass than softmax*",
            "normalisation/sigmoid: lower than softmax*",
        ),
    ),
    Said(
        "Sigmoid attention has no sink in a model of 1B parameters either",
        "abstract; section 7",
        "45.11 and 2.46",
        beyond=NEEDS_NODE,
    ),
)

SINK = (
    Said("The sink does not depend on the domain of the text", "section 3, appendix", "", ("domains/*",)),
    Said("The sink rate falls as texts grow", "section 3, Figure 3", "", ("metric/length", "metric/length, by mass")),
    Said(
        "The sink rate orders models alike at every threshold and length of text",
        "section 3, Figure 3",
        "",
        ("metric/order at*",),
        every=True,
    ),
    Said(
        "On one repeated token no position but its embedding tells the first from the others",
        "section 3, Table 1; appendix B",
        "0 (LLaMA2-7B)",
        theory="equal tokens stay equal",
    ),
    Said(
        "Where positions are relative, the first of equal tokens gets less the longer the text",
        "appendix B",
        "",
        theory="no sink as the context grows",
    ),
    Said(
        "On one repeated token there is a sink where positions are learned",
        "section 3, Table 7",
        "62.28 (GPT2-XL)",
        ("moved-positions/on one repeated token*", "moved-positions/with a BOS: on one*"),
    ),
    Said(
        "The first position's embedding makes that sink: replaced, the sink goes",
        "section 3, Table 7",
        "0.20 (GPT2-XL)",
        ("moved-positions/replaced*", "moved-positions/with a BOS: replaced*"),
    ),
    Said(
        "The sink follows the first position's embedding to where it is swapped",
        "section 3, Table 7",
        "57.63 (GPT2-XL)",
        ("moved-positions/swapped*", "moved-positions/with a BOS: swapped*"),
    ),
    Said(
        "Queries point along the sink's key: the angle makes the sink",
        "section 3, Figure 2",
        "",
        ("sink-head/the angle*",),
    ),
    Said("The sink's key is not longer than others", "section 3, Figure 2", "", ("sink-head/not the length",)),
    Said(
        "The sink's key lies apart from the others", "section 3", "", ("sink-head/a key apart", "sink-head/apart as*")
    ),
    Said("The sink's value is small", "section 3, Figure 2", "", ("sink-head/a small value",)),
    Said(
        "The sink's token has a massive activation",
        "section 3; Sun et al. 2024",
        "",
        ("sink-head/massive activation",),
    ),
    Said(
        "The massive activation stands in a few channels",
        "slides",
        "",
        ("sink-head/in fewer channels", "sink-head/in few channels"),
    ),
    Said("Early blocks have fewer sinks", "section 3", "", ("sink-head/less in the first block",)),
    Said(
        "The first token attends to itself alone, whatever follows",
        "slides",
        "",
        theory="the past does not see the future",
    ),
    Said(
        "All 32 released models have sinks, hybrids among them",
        "Table 8",
        "88.48 (Jamba-v0.1)",
        beyond=NEEDS_WEIGHTS,
    ),
    Said(
        "Chat models keep the sink of their base models (ours one model, tuned three times)",
        "Table 1",
        "92.47 and 92.88 (LLaMA2-7B)",
        (
            "tuning/mass remains",
            "tuning/a sink remains",
        ),
    ),
    Said(
        "Instruction tuning leaves the sink about as strong as it was (ours one model, tuned three times)",
        "Table 1",
        "88.34 to 98.85",
        ("tuning/unchanged*",),
        every=True,
    ),
)

OPTIMIZATION = (
    Said("The sink grows steadily in training", "section 4, Figure 4", "", ("emergence/steadily*",)),
    Said(
        "The sink comes when most of the loss has fallen (as one that grew evenly would, too)",
        "section 4, Figure 4",
        "",
        ("emergence/in the last third of the loss*",),
    ),
    Said(
        "A smaller learning rate makes a weaker sink",
        "introduction; Table 9",
        "2.90, 11.21, 18.18, 32.23",
        (
            "learning-rates/monotone*",
            "learning-rate/monotone*",
            "learning-rates/also at equal loss*",
            "learning-rate/also at equal loss*",
        ),
    ),
    Said("A smaller learning rate makes the sink emerge later", "section 4", "", ("learning-rate/later*",)),
    Said(
        "A smaller rate makes a weaker sink also where steps times rate is the same",
        "Table 9",
        "23.44, 18.18, 16.81, 6.29",
        ("equal-product/*",),
    ),
    Said("The batch size matters little", "Table 10", "16.19 to 18.18", ("batch-size/little*",)),
    Said("The sink is there at every batch size", "Table 10", "16.19 to 18.18", ("batch-size/always*",)),
)

DATA = (
    Said("With little data models overfit", "section 5", "", ("data-amount/which overfits",)),
    Said(
        "Overfitting is not what keeps the sink away where data are few",
        "section 5",
        "",
        ("data-amount/overfitting starts before", "data-amount/and leaves the sink*"),
        every=True,
    ),
    Said(
        "With somewhat less text the sink is there",
        "section 5",
        "only 50M and 100M tokens lose it",
        ("data-amount/a twentieth leaves it*",),
    ),
    Said(
        "A fixed token takes the sink to each of the first three positions",
        "Table 10",
        "74.11, 69.03, 69.64",
        ("fixed-positions/*",),
        every=True,
    ),
    Said("A token fixed at position 1 makes the sink stronger", "Table 10", "18.18 and 74.11", ("fixed-token/grows*",)),
    Said(
        "The massive activation follows the fixed token",
        "section 5",
        "",
        ("fixed-token/the massive activation follows",),
    ),
    Said(
        "Two random tokens at the start move the sink to the second of them",
        "section 5",
        "14.08 on x2 and 1.98 on x1",
        ("random-tokens-longer/two of them*", "random-tokens/two of them*"),
    ),
    Said(
        "A random first token makes the sink stronger",
        "section 5",
        "18.18 and 27.03",
        ("random-tokens-longer/a random first*", "random-tokens/a random first*"),
    ),
    Said(
        "A random second token leaves the first its sink",
        "section 5",
        "20.99",
        ("random-tokens-longer/a random second*", "random-tokens/a random second*"),
    ),
)

LOSS = (
    Said(
        "Weight decay encourages the sink, most at a moderate one",
        "introduction; Table 2",
        "15.20, 18.18, 41.08, 6.13",
        ("weight-decay/more than with *, by mass",),
        every=True,
    ),
    Said(
        "The same by sink rates",
        "Table 2",
        "",
        ("weight-decay/more than with ?", "weight-decay/more than with 0.1"),
        every=True,
    ),
    Said("Without decay there is a sink too", "Table 2", "15.20", ("weight-decay/not needed*",)),
    Said("Small decays change little", "Table 2", "15.20, 15.39, 15.23", ("weight-decays/small*",)),
    Said(
        "Too much decay weakens it",
        "Table 2",
        "18.18 and 6.13",
        ("weight-decay/too much*",),
    ),
    Said("More decay costs loss", "Table 2", "3.72 to 5.24", ("weight-decays/loss from*",), every=True),
    Said(
        "A short attention window prevents the sink",
        "introduction; section 6",
        "",
        ("window/none, at a threshold of a half",),
    ),
    Said("A short attention window weakens it", "section 6", "", ("window/short*",)),
    Said(
        "The longer the window, the stronger the sink (ours 64 and 32)",
        "section 6",
        "emerges from 256 of 2,048 on",
        ("windows/*", "window/grows*"),
    ),
    Said(
        "In a window the sink stands on the absolute first token, not on the window's first",
        "introduction; section 6",
        "",
        ("window/on the absolute first token",),
    ),
)

STATEMENTS = {
    "The abstract": ABSTRACT,
    "What a sink is": SINK,
    "Optimization": OPTIMIZATION,
    "Data": DATA,
    "Loss": LOSS,
    "Architecture": ARCHITECTURE,
    "Packing": SLIDES,
}
