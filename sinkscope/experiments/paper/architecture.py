"""Statements of the paper's section on architecture and of its slides."""

from __future__ import annotations

from sinkscope.experiments.paper.said import Said

ARCHITECTURE = (
    Said(
        "The sink emerges under every position embedding: none, sinusoidal, learned, ALiBi, rotary",
        "introduction; Table 3",
        "18.18 to 33.13",
        ("positions/always*",),
    ),
    Said(
        "It is there with relative positions too (here before training already)",
        "introduction; Table 3",
        "35.53",
        ("positions/relative_paper: is there*", "positions/relative_paper: emerges*"),
    ),
    Said(
        "It emerges without a fixed token, with rotary positions",
        "Table 3, Figure 4",
        "18.18",
        ("rotary-without-bos/*",),
        every=True,
    ),
    Said(
        "It emerges without a fixed token, with learned positions",
        "Table 3",
        "33.13",
        ("moved-positions/a sink without a BOS",),
    ),
    Said(
        "It emerges under every activation of the feed-forward",
        "introduction; Table 11",
        "13.88 to 18.18",
        ("feed-forward/*",),
    ),
    Said(
        "It emerges where norms stand behind the sums", "introduction; section 7", "13.54", ("post-norm/post-norm: *",)
    ),
    Said(
        "Where norms stand behind the sums, activations are massive before them",
        "Figure 7",
        "about 80 times",
        ("post-norm/massive before the norm",),
    ),
    Said("It emerges with any number of heads", "introduction; Table 12", "10.68 to 19.50", ("heads/always*",)),
    Said(
        "It emerges with heads that are added, not concatenated (8 there, 4 here)",
        "Table 12",
        "21.76",
        ("heads/4 heads, added*",),
    ),
    Said("The number of heads matters little for the loss", "Table 12", "3.73 to 3.78", ("heads/equal losses",)),
    Said(
        "A learned key leaves the first token without a sink",
        "Table 4",
        "0.00",
        ("biases/none", "biases/no mass", "biases/k_bias: less mass than*", "biases/k_bias: lower*"),
    ),
    Said(
        "A learned sink token takes the sink",
        "Table 4",
        "Sink_* 74.12",
        ("sink-token/sink token: *mass*", "sink-token/sink token: a sink*"),
    ),
    Said("A learned sink token has the massive activation", "section 7", "", ("sink-token/massive activation",)),
    Said(
        "A learned key with a learned value takes the sink too",
        "Table 4",
        "Sink_* 72.76, Sink_1 0.04",
        ("biases-without-bos/kv_bias: *the bias*",),
    ),
    Said(
        "A learned key alone takes more than one with a value",
        "Table 4",
        "Sink_1 0.04 and 0.00",
        ("biases/a key alone takes more",),
    ),
    Said(
        "A learned value alone changes nothing",
        "Table 4",
        "17.53 and 18.18",
        ("biases/a value bias changes nothing*", "biases-without-bos/a value bias changes nothing", "biases/v_bias: *"),
    ),
    Said(
        "With a learned key and a zero value massive activations vanish",
        "section 7",
        "",
        (
            "biases/k_bias: not massive",
            "biases-without-bos/k_bias: not massive",
            "biases/k_bias: less massive*",
            "biases/and more of the massive*",
        ),
    ),
    Said(
        "Neither sink token nor biases cost loss",
        "Table 4",
        "3.72 or 3.73",
        ("biases-without-bos/*no cost", "sink-token/*no cost", "key-value-biases/*no cost"),
        every=True,
    ),
    Said(
        "A learned key that all heads share takes the sink",
        "Table 12",
        "Sink_* 68.31",
        ("key-value-biases/k_bias_shared: *the*",),
    ),
    Said(
        "A key and a value that all heads share take the sink",
        "Table 12",
        "Sink_* 56.61",
        ("key-value-biases/kv_bias_shared: *the*",),
    ),
    Said(
        "A shared key and value leave the first token a sink",
        "Table 12",
        "Sink_1 12.44",
        ("key-value-biases/kv_bias_shared: some stays*",),
    ),
    Said(
        "A shared key and value take less than those of single heads",
        "Table 12",
        "72.76 and 56.61",
        ("key-value-biases/a shared one takes less",),
    ),
    Said(
        "The longer the value behind the key, the weaker its sink",
        "Table 5",
        "Sink_* 73.34, 70.03, 44.43, 1.51",
        ("fixed-values/*: shorter is better, by mass",),
        every=True,
    ),
    Said(
        "A long value behind the key weakens the sink on it",
        "Table 5",
        "Sink_* 73.34, 1.51, 0.00",
        ("fixed-values/*: a long value repels, by mass",),
        every=True,
    ),
    Said(
        "The first token gets that sink",
        "Table 5",
        "Sink_1 25.88, 11.21",
        ("fixed-values/*: the first token gets it*",),
        every=True,
    ),
    Said("The same two by sink rates", "Table 5", "", ("fixed-values/*better", "fixed-values/*repels"), every=True),
    Said("None of these values costs loss", "Table 5", "3.71 to 3.73", ("fixed-values/no cost",)),
    Said(
        "One learned channel of the key is enough for a sink",
        "Table 13",
        "Sink_* 32.18",
        ("low-rank-key/1 channel*",),
    ),
    Said(
        "With more learned channels the key takes more",
        "Table 13",
        "Sink_* 32.18 of 1, 23.30 of 16, 51.23 of 32",
        ("low-rank-key/more channels*",),
    ),
    Said(
        "Rows of softmax that sum to less make a weaker sink",
        "Table 14",
        "29.10, 18.18, 9.41, 3.59; 4.53 at the smallest",
        ("scaled/*",),
    ),
    Said(
        "Scaling softmax's rows is a change of the optimizer's settings",
        "appendix; equations 32 to 42",
        "",
        theory="α under AdamW",
    ),
    Said(
        "p-normalized softmax does not train for p > 1",
        "section 7",
        "",
        ("powers/p = *: fails",),
        every=True,
    ),
    Said("p-normalized softmax trains for p < 1", "section 7", "", ("powers/p = *: converges",), every=True),
    Said(
        "p-normalized softmax is less massive for p < 1", "section 7", "", ("powers/p = *: less massive*",), every=True
    ),
    Said("p-normalized sigmoid trains for p > 1", "section 7", "", ("powers/sigmoid, p = *",), every=True),
    Said("p-normalized sigmoid is massive still", "section 7", "", ("powers/sigmoid, p > 1: massive",)),
    Said(
        "Sigmoid attention that is normalized has the sink again",
        "Table 6",
        "30.24",
        ("normalisation/sigmoid_normalized: *", "normalisation/sigmoid: *than sigmoid_normalized*"),
    ),
    Said(
        "Normalized sigmoid attention has massive activations",
        "Figure 8",
        "about 20 times",
        ("normalisation/added back: massive",),
    ),
    Said(
        "Sigmoid attention without normalization has none",
        "Figure 8",
        "1 to 1.8 times, softmax about 30",
        (
            "sigmoid-at-equal-loss/*not massive",
            "normalisation/as long as the others",
            "normalisation/sigmoid: less massive*",
        ),
    ),
    Said(
        "Sigmoid attention costs no loss",
        "Table 6",
        "3.70 and 3.73",
        ("normalisation/sigmoid: no cost",),
    ),
    Said(
        "Sigmoid attention has no sink at any learning rate and decay",
        "appendix",
        "0.18 to 0.81",
        ("sigmoid-settings/none", "sigmoid-settings/no mass"),
    ),
    Said(
        "Sigmoid attention trains at each of them",
        "appendix",
        "losses of 3.68 to 4.08",
        ("sigmoid-settings/*: converges",),
        every=True,
    ),
    Said(
        "ELU, identity and MLP kernels have no sink either, where rows need not sum to one",
        "Tables 6 and 15",
        "0.00 to 0.80",
        ("unnormalised/none", "unnormalised/no mass"),
    ),
    Said(
        "They have less of a sink than softmax, at equal steps and at equal loss",
        "Tables 6 and 15",
        "0.00 to 0.80, 18.18",
        ("unnormalised/*than softmax*",),
        every=True,
    ),
    Said(
        "They have no massive activations",
        "section 7",
        "",
        ("unnormalised/*not massive",),
        every=True,
    ),
    Said(
        "Linear attention with normalized rows has a sink",
        "Tables 6 and 15",
        "53.65",
        ("normalised-kernel/kernel*",),
    ),
    Said(
        "Normalized linear attention has a stronger sink than softmax",
        "Tables 6 and 15",
        "53.65 and 18.18",
        ("normalised-kernel/stronger*",),
    ),
    Said(
        "Normalized linear attention has a higher loss than softmax",
        "Tables 6 and 15",
        "4.19 and 3.73",
        ("normalised-kernel/worse",),
    ),
    Said(
        "ELU with normalized rows, ELU kernels without, and identity kernels with them do not train",
        "Tables 6 and 15",
        "",
        ("failing/*",),
        every=True,
    ),
)

SLIDES = (
    Said(
        "A model trained with a fixed BOS has no sink without it",
        "slides",
        "90.84 to 0.05",
        ("inputs/needs its BOS*", "packing/*needs its BOS*"),
    ),
    Said(
        "The loss of a model trained with a fixed BOS breaks down without it",
        "slides",
        "2.69 to 7.56",
        ("inputs/its loss breaks down", "inputs/and its loss", "packing/*and its loss"),
    ),
    Said(
        "Masks between documents weaken the sink where no BOS is fixed",
        "slides",
        "65.15 to 28.23",
        ("packing-without-bos/masking lowers it*",),
    ),
    Said(
        "A BOS at inference hardly changes the sink of a model that learned without one",
        "slides",
        "65.15 and 65.10",
        ("packing-without-bos/a BOS changes little*",),
    ),
    Said(
        "A model whose documents begin with a BOS has its sink there",
        "slides",
        "83.33, and 50.24 on texts without it",
        ("document-bos/a BOS*", "document-bos/is missed*"),
    ),
)
