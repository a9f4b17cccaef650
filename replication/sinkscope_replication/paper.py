"""The statements of Gu et al. 2025, one claim each: the rows of the table in the README.

Numbers are the paper's: sink rates in percent at a threshold of .3 on 64 tokens, losses in nats, of its 60M model
unless said otherwise. `make pages` fills the other columns from the records.
"""

from __future__ import annotations

from dataclasses import dataclass

AT_1, EARLY, WITH_SINK = "at 1 %", "at 1 % by step 1,125", "of those with a sink on it"
OF_MASS = "of mass"
NO_BOS = "the paper trains without a fixed BOS; ours has one"


@dataclass(frozen=True)
class Row:
    """One statement: in our words, where it is made, its number, and the claim that decides, "question/claim".

    `ours`: pairs of a variation and a metric whose mean is shown in the published unit. `differs`: how ours differs
    from the paper's setting, which a row that was not seen says. `beyond`: why no run here decides, without a claim.
    `released`: whether the row shows the sink rates of the released models that were measured. `by`: what was counted,
    where that is not whether a rate is 3 %. `stays_open`: why the runs of the question cannot decide it.
    """

    says: str
    place: str
    published: str
    claim: str = ""
    ours: tuple[tuple[str, str], ...] = ()
    differs: str = ""
    beyond: str = ""
    released: bool = False
    by: str = ""
    stays_open: str = ""


def means(metric: str, *labels: str) -> tuple[tuple[str, str], ...]:
    """A metric of several variations."""
    return tuple((label, metric) for label in labels)


ROWS = (
    # The abstract.
    Row(
        "Small models have sinks",
        "abstract, T8",
        "from 14M on",
        "abstract/in a small model",
        means("sink_0", "softmax"),
    ),
    Row(
        "Released models of all families have sinks",
        "abstract, T8",
        "all 32",
        beyond="seven models decide",
        released=True,
    ),
    Row(
        "Random tokens show the sink too",
        "abstract, T1",
        "90.13 %",
        "abstract/random tokens",
        means("sink_0/random_after_first", "softmax"),
    ),
    Row(
        "It emerges in training",
        "abstract, F4",
        "after 1k of 20k steps",
        "abstract/after the start",
        means("sink_0", "softmax"),
        by="rose by 1 point",
    ),
    Row(
        "It takes enough training data",
        "abstract, §5",
        "< 1 % at 50M tokens",
        "fresh-data-shares/needs text",
        means("sink_0/training", "1/2", "1/700"),
        by="on training windows",
    ),
    Row(
        "It follows a token fixed at position 2",
        "abstract, T10",
        "69.64 %",
        "abstract/follows",
        means("sink_2", "token at 2", "softmax"),
        by=AT_1,
    ),
    Row(
        "It follows a token fixed at position 1",
        "abstract, T10",
        "69.03 %",
        "fresh-fixed-positions/at 1",
        means("sink_1", "token at 1", "BOS at 0"),
        by=AT_1,
    ),
    Row(
        "A fixed token at position 0 strengthens it",
        "abstract, T10",
        "18.18 to 74.11 %",
        "abstract/a BOS makes it",
        means("sink_0", "no fixed token", "softmax"),
    ),
    Row(
        "With prefix language modeling it moves into the prefix",
        "abstract, §6",
        "",
        "prefix-after-random/within the prefix",
        means("strongest", "prefix of 5"),
        by=AT_1,
    ),
    Row(
        "It acts like a key bias: a learned key takes it",
        "abstract, T4",
        "slot 73.34 %",
        "biases-without-bos/a key",
        means("slot", "k_bias"),
    ),
    Row(
        "It adds nothing: a head writes little while on it",
        "abstract, §7",
        "",
        "abstract/writes less than half",
        means("resting/on_sink", "softmax"),
        by="below .5",
    ),
    Row(
        "Sigmoid, whose rows need not sum to one, has fewer after equal steps",
        "abstract, T6",
        "18.18 and .44 %",
        "abstract/sigmoid: fewer",
        means("sink_0", "softmax", "sigmoid"),
    ),
    Row(
        "... also at softmax's loss",
        "abstract, T6",
        "",
        "fresh-equal-loss/fewer",
        means("sink_0", "softmax", "sigmoid, at its loss"),
    ),
    Row(
        "... and at 1B parameters",
        "abstract, §7",
        "45.11 and 2.46 %",
        beyond="1.1B parameters on 42B tokens: GPU nodes",
    ),
    # What a sink is.
    Row(
        "The domain of the text matters little",
        "§3",
        "",
        "abstract/domains: hardly",
        means("sink_0", "softmax"),
        by="over five parts of one corpus",
    ),
    Row(
        "It weakens as texts grow (32 to 128 tokens)",
        "§3, F3",
        "",
        "abstract/falls with length",
        means("sink_mass/tokens=32", "softmax") + means("sink_mass/tokens=128", "softmax"),
    ),
    Row(
        "Queries point along its key: the angle makes it",
        "§3, F2",
        "",
        "sink-head/the angle",
        means("top_head/cosine_gap", "softmax"),
        by="from .3 on",
    ),
    Row(
        "Its key is not longer",
        "§3, F2",
        "",
        "abstract/not the length",
        means("top_head/key_ratio", "softmax"),
        f"{NO_BOS}, whose key is learned for one token",
        by="up to 1.25",
    ),
    Row(
        "Its value is small",
        "§3, F2",
        "",
        "abstract/a small value",
        means("top_head/value_ratio", "softmax"),
        by="up to .5",
    ),
    Row(
        "It has a massive activation",
        "§3",
        "",
        "abstract/massive activation",
        means("norm_ratio", "softmax", "no fixed token"),
        by="from 4 on",
    ),
    Row(
        "... in few channels",
        "slides",
        "",
        "abstract/in few channels",
        means("kurtosis_neurons", "softmax", "no fixed token"),
    ),
    Row(
        "Early blocks have fewer",
        "§3",
        "",
        "sink-head/fewer in early blocks",
        means("sink_mass/strongest/layer=0", "softmax"),
    ),
    Row(
        "Learned positions: one repeated token has it",
        "§3, T7",
        "62.28 %",
        "moved-positions/on one repeated token",
        means("sink_0/repeated", "learned positions, fixed BOS"),
    ),
    Row(
        "... replacing the first embedding removes it",
        "§3, T7",
        ".20 %",
        "moved-positions/replaced",
        means("sink_0/replaced=4", "learned positions, fixed BOS"),
        by=WITH_SINK,
    ),
    Row(
        "... swapping embeddings moves it",
        "§3, T7",
        "57.63 %",
        "moved-positions/swapped",
        means("sink_4/swapped=4", "learned positions, fixed BOS"),
        by=WITH_SINK,
    ),
    Row(
        "Instruction tuning keeps it",
        "§3, T1",
        "92.47 and 92.88 %",
        "tuning/a sink remains",
        means("sink_0/plain_text", "before", "tuned"),
        stays_open="all tune one `nano`; seven trained apart would decide",
    ),
    # Optimization.
    Row(
        "It grows steadily",
        "§4, F4",
        "",
        "emergence/steadily",
        means("sink_0", "softmax"),
        by="where the curve was kept",
    ),
    Row(
        "A smaller learning rate weakens it",
        "introduction, T9",
        "2.90 and 18.18 %",
        "abstract/a smaller rate weakens it",
        means("sink_0", "lr / 4", "softmax"),
    ),
    Row(
        "... and delays it",
        "introduction, §4",
        "",
        "abstract/a smaller rate delays it",
        means("sink_0", "lr / 4", "softmax"),
        by=EARLY,
    ),
    Row(
        "... also at equal steps × rate",
        "T9",
        "23.44, 18.18, 16.81 %",
        "equal-product/monotone",
        means("sink_0", "lr x 2, half", "lr, all steps", "lr / 2, twice"),
    ),
    Row(
        "The batch size matters little",
        "T10",
        "16.19 to 18.18 %",
        "batch-size/little",
        means("sink_0", "a quarter", "twice"),
    ),
    # Data.
    Row(
        "Two random tokens move it to the second",
        "§5",
        "14.08 %",
        "random-tokens-longer/moved",
        means("sink_1", "two random", "text"),
        by=AT_1,
    ),
    Row(
        "A random first token strengthens it",
        "§5",
        "18.18 to 27.03 %",
        "random-tokens-longer/stronger",
        means("sink_0", "text", "first random"),
        by=AT_1,
    ),
    # Loss.
    Row(
        "A moderate weight decay strengthens it",
        "introduction, T2",
        "18.18 to 41.08 %",
        "weight-decay/most at a moderate one",
        means("sink_0", "0.5", "0.1"),
        "a decay of .5 costs .2 nats here, .07 there",
        by=OF_MASS,
    ),
    Row("Too much weakens it", "T2", "6.13 %", "weight-decay/too much weakens it", means("sink_0", "0.1", "2")),
    Row("It needs no decay", "T2", "15.20 %", "weight-decay/not needed", means("sink_0", "0")),
    Row(
        "A short window prevents it",
        "introduction, §6",
        "",
        "window/short prevents it",
        means("sink_0/tokens=32/epsilon=0.5", "causal", "window of 32"),
        by="at a threshold of .5, on 32 tokens",
    ),
    Row(
        "In a window it is on the absolute first token",
        "introduction, §6",
        "",
        "window/on the absolute first token",
        means("strongest_position/tokens=128", "window of 64"),
    ),
    # Architecture.
    Row(
        "It emerges without a fixed token (rotary)",
        "T3, F4",
        "18.18 %",
        "rotary-without-bos/a sink",
        means("sink_0", "6,000 steps"),
        "1.3M parameters, 6,000 steps",
    ),
    Row(
        "... with no, sinusoidal, learned, ALiBi positions",
        "introduction, T3",
        "20.35 to 33.13 %",
        "positions/always",
        means("sink_0", "none", "sinusoidal", "learned", "alibi"),
    ),
    Row(
        "... with relative positions",
        "introduction, T3",
        "35.53 %",
        "positions/relative: emerges",
        means("sink_0", "relative_paper"),
        by="3 points above their start",
    ),
    Row(
        "... under every feed-forward",
        "introduction, T11",
        "13.88 to 17.89 %",
        "feed-forward/always",
        means("sink_0", "relu", "gelu", "swish", "reglu", "geglu"),
    ),
    Row("... with post-norm", "introduction, §7", "13.54 %", "post-norm/a sink", means("sink_0", "post-norm")),
    Row(
        "... with 8, 2 and 1 heads",
        "introduction, T12",
        "18.18, 12.95, 19.50 %",
        "heads/always",
        means("sink_0", "8 heads", "2 heads", "1 head"),
    ),
    Row("... with heads that are added", "T12", "21.76 %", "heads/added", means("sink_0", "4 heads, added")),
    Row(
        "A learned key leaves position 0 without it",
        "T4",
        "0 %",
        "biases/a key takes it",
        means("sink_0", "softmax", "k_bias"),
    ),
    Row("A learned value alone changes nothing", "T4", "17.53 %", "biases/a value does not", means("sink_0", "v_bias")),
    Row("A learned sink token takes it", "T4", "74.12 %", "sink-token/a sink", means("sink_0", "sink token")),
    Row(
        "With a learned key massive activations vanish",
        "§7",
        "",
        "biases/massive activations vanish",
        means("norm_ratio", "softmax", "k_bias"),
        NO_BOS,
        by="from 4 on",
    ),
    Row(
        "The longer the value of a learned key, the weaker it is",
        "T5",
        "70.03, 44.43, 1.51 %",
        "fixed-values/first: shorter is better",
        means("slot", "1 first", "5 first", "20 first"),
        by=OF_MASS,
    ),
    Row(
        "One channel of a key is enough",
        "T13",
        "32.18 %",
        "low-rank-key/one channel",
        means("slot", "1 channel", "a key of zeros"),
        by=OF_MASS,
    ),
    Row(
        "Rows that sum to less make it weaker",
        "T14",
        "29.10 to 3.59 %",
        "scaled/monotone",
        means("sink_0", "alpha 2", "alpha 0.1"),
    ),
    Row(
        "Normalized sigmoid has it again",
        "T6",
        "30.24 %",
        "normalisation/added back",
        means("sink_0", "sigmoid_normalized", "sigmoid"),
    ),
    Row(
        "Sigmoid costs no loss",
        "T6",
        "3.70 and 3.73",
        "normalisation/no cost",
        means("loss", "sigmoid", "softmax"),
        "sigmoid learns more slowly in 1,500 steps, without a bias",
    ),
    Row(
        "ELU, identity and MLP kernels have fewer",
        "T6, T15",
        "0 to .80 %",
        "unnormalised/fewer",
        means("sink_0", "softmax", "elu", "kernel_identity", "kernel_mlp", "kernel_mlp_normalized"),
    ),
    Row(
        "Normalized linear attention has it",
        "T6, T15",
        "53.65 %",
        "normalised-kernel/a sink",
        means("sink_0", "kernel_elu_normalized"),
    ),
    # The slides.
    Row(
        "Without its BOS a model trained with one has none",
        "slides",
        "90.84 to .05 %",
        "abstract/none without its BOS",
        means("sink_0", "softmax") + means("sink_0/without_first", "softmax"),
        by="at most 1 % without it",
    ),
    Row(
        "... and its loss breaks down",
        "slides",
        "2.69 to 7.56",
        "inputs/its loss breaks down",
        means("loss/with_first", "softmax") + means("loss/without_first", "softmax"),
        "windows of 128 tokens, 1.3M parameters",
    ),
    Row(
        "Masks between documents keep it with a fixed BOS",
        "slides",
        "90.56 %",
        "short-documents/needs its BOS under masks too",
        means("sink_0/document_after_bos", "intra-document, fixed BOS"),
    ),
    Row(
        "... and with a BOS before every document it is there",
        "slides",
        "83.33 %",
        "short-documents/on the BOS",
        means("sink_0/document_after_bos", "intra-document, BOS", "intra-document"),
    ),
)
