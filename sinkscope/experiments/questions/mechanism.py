"""Questions about what a sink does in a finished model (Gu et al. 2025, section 7 and Table 7; Barbero et al. 2025)."""

from __future__ import annotations

from sinkscope.experiments.effects import gap, level, metric_gap, quotient, rising
from sinkscope.experiments.observed import OTHERS
from sinkscope.experiments.question import Question, Variation, above, below
from sinkscope.experiments.questions.variations import SOFTMAX, model

SECTION_7 = "Gu et al. 2025, section 7"

no_op = Question(
    name="no-op",
    asks="Do heads with a sink do nothing?",
    source=SECTION_7,
    variations=(SOFTMAX,),
    assertions=(
        above(
            1.4,
            quotient("softmax", "output_norm/other_heads", "output_norm/sink_heads"),
            "they write little",
            "heads without a sink write more than 1.4 times what those with one write (mean norm of a head's output)",
            SECTION_7,
        ),
        above(
            0.0,
            metric_gap("softmax", "zeroing/other_heads", "zeroing/sink_heads"),
            "they matter less",
            "the loss rises less when sink heads are zeroed than when as many other heads are",
            SECTION_7,
        ),
        below(
            0.1,
            level("zeroing/sink_heads", "softmax"),
            "they do nothing",
            "the loss rises by less than 0.1 nats when sink heads are zeroed",
            SECTION_7,
        ),
    ),
)

TABLE_7 = "Gu et al. 2025, Table 7, GPT2-XL on one repeated token"
REPLACED = dict(zip(OTHERS, (0.20, 2.36, 7.73, 10.63, 10.97), strict=True))
SWAPPED = dict(zip(OTHERS, ((1.44, 57.63), (3.73, 54.48), (6.78, 52.81), (8.95, 51.70), (9.42, 51.13)), strict=True))
PUBLISHED_7 = {
    "sink_0/repeated": 62.28,
    **{f"sink_0/replaced={other}": sink for other, sink in REPLACED.items()},
    **{f"sink_{other}/replaced={other}": 0.0 for other in REPLACED},
    **{f"sink_0/swapped={other}": first for other, (first, _) in SWAPPED.items()},
    **{f"sink_{other}/swapped={other}": sink for other, (_, sink) in SWAPPED.items()},
}

moved_positions = Question(
    name="moved-positions",
    asks="With learned positions, is it the first position's embedding that makes the sink?",
    source=TABLE_7,
    variations=(Variation("learned positions", {"model.position": "learned"}, PUBLISHED_7),),
    assertions=(
        above(
            1.0,
            level("sink_0/repeated", "learned positions"),
            "on one repeated token",
            "on one repeated token more than 1 % of heads have their sink at the first position",
            f"{TABLE_7}: 62.28 %",
        ),
        above(
            1.0,
            metric_gap("learned positions", "sink_0/repeated", "sink_0/replaced=4"),
            "replaced",
            "the sink rate of the first position falls by more than 1 point when it gets the embedding of the fifth",
            f"{TABLE_7}: 62.28 and 0.20 %",
        ),
        above(
            1.0,
            metric_gap("learned positions", "sink_4/swapped=4", "sink_0/swapped=4"),
            "swapped",
            "when the first and the fifth position exchange embeddings, the fifth has the higher sink rate, by more "
            "than 1 point",
            f"{TABLE_7}: 57.63 and 1.44 %",
        ),
    ),
)

BARBERO = "Barbero et al. 2025"
DEPTHS = (2, 4, 8)
REACH = 1.05  # of the change that arrives without the sink over the one that arrives with it

over_mixing = Question(
    name="over-mixing",
    asks="Does the sink keep tokens from mixing, and do deeper models have more of it?",
    source=BARBERO,
    variations=tuple(model(f"{layers} layers", {"num_hidden_layers": layers}) for layers in DEPTHS),
    assertions=(
        above(
            REACH,
            quotient("4 layers", "perturbation/without_first", "perturbation"),
            "changes reach further without it",
            "a change of one token moves the later ones more where the window lacks its BOS, by more than 5 %",
            f"{BARBERO}: Gemma-7B with and without BOS",
        ),
        above(
            REACH,
            quotient("8 layers", "perturbation/without_first", "perturbation"),
            "also in the deepest",
            "in a model of 8 layers, too, a change of one token moves the later ones more without the BOS, by more "
            "than 5 %",
            f"{BARBERO}: Gemma-7B with and without BOS",
        ),
        above(
            1.0,
            rising("sink_0", tuple(f"{layers} layers" for layers in DEPTHS)),
            "deeper, stronger",
            "the sink rate rises with depth (2, 4, 8 layers) by more than 1 point along the fitted line",
            f"{BARBERO}: Llama-3.1 of 8, 70 and 405 billion parameters, 45.97, 73.49, 78.29 %",
        ),
    ),
    not_at={"paper": "the paper trains without a fixed BOS"},
)

collapse = Question(
    name="collapse",
    asks="Does a sink keep a model's tokens from becoming alike?",
    source=BARBERO,
    note="The question was first asked of absolute lengths over all tokens, where the first token's length alone "
    "decides. It was restated for the other tokens, relative to their own lengths, before those numbers were known.",
    variations=(Variation("softmax"), Variation("no fixed token", {"data.bos": "none"})),
    assertions=(
        above(
            0.0,
            gap("relative_spread", "softmax", "no fixed token"),
            "rank",
            "behind the last block the hidden states of all tokens but the first are further from their mean, in terms "
            "of their length, with a fixed BOS than without",
            f"{BARBERO}; rank collapse",
        ),
        above(
            0.0,
            gap("relative_pair_distance", "softmax", "no fixed token"),
            "representations",
            "behind the last block the last two tokens are further apart, in terms of their length, with a fixed BOS "
            "than without",
            f"{BARBERO}; representational collapse",
        ),
    ),
    not_at={"paper": "the paper trains without a fixed BOS"},
)

QUESTIONS = (no_op, moved_positions, over_mixing, collapse)
