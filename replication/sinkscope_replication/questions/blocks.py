"""Questions about what surrounds the attention operation (Gu et al. 2025, Tables 3, 11, 12)."""

from __future__ import annotations

from sinkscope.experiments import (
    FromRecipe,
    Has,
    Question,
    Variation,
    above_ratio,
    log_ratio,
    most_models,
    rising,
    times,
    within,
)

STUDY = FromRecipe(job="replication")
BASE, NEW_BASE, NEW = range(13), range(13, 25), range(13, 19)
SINK = Has("sink_0", 3.0)
TABLE_3, TABLE_11, TABLE_12 = (f"Gu et al. 2025, Table {number}" for number in (3, 11, 12))
SECTION_7 = "Gu et al. 2025, section 7"

# The paper's sink rate and loss.
POSITIONS = {
    "none": (20.35, 3.81),
    "sinusoidal": (32.73, 3.74),
    "learned": (33.13, 3.79),
    "relative_paper": (35.53, 5.45),
    "alibi": (20.78, 3.71),
    "rotary": (18.18, 3.73),
}
FEED_FORWARD = {
    "relu": (16.90, 3.82),
    "gelu": (14.76, 3.79),
    "swish": (17.89, 3.80),
    "reglu": (13.88, 3.75),
    "geglu": (17.86, 3.73),
    "swiglu": (18.18, 3.73),
}
HEADS = {8: (18.18, 3.73), 4: (10.68, 3.74), 2: (12.95, 3.76), 1: (19.50, 3.78)}

positions = Question(
    name="positions",
    asks="Does the sink need a certain position embedding, or any?",
    source=TABLE_3,
    base=STUDY,
    seeds=(3, 4, 5),
    variations=tuple(
        Variation(name, {"model.position": name}, {"sink_0": sink, "loss": loss}, BASE if name == "rotary" else None)
        for name, (sink, loss) in POSITIONS.items()
    ),
    assertions=(
        most_models(
            ("none", "sinusoidal", "learned", "alibi"),
            SINK,
            "always",
            "most models with no, sinusoidal, learned and ALiBi positions have a sink",
            TABLE_3,
        ),
        most_models(
            "relative_paper",
            Has("sink_0", 3.0, minus="sink_0/start"),
            "relative: emerges",
            "in most models with relative positions the rate ends 3 points above where it starts",
            TABLE_3,
        ),
    ),
    note="Untrained models of 'relative_paper' have the sink already: its random bias gives the first position most of "
    "each row.",
)

rotary = Question(
    name="rotary-without-bos",
    asks="Does a sink form without a fixed BOS in four times the steps?",
    source="Gu et al. 2025, Table 3 and Figure 4",
    base=STUDY,
    seeds=range(3, 10),
    shared={"data.bos": "none", "steps": times(4.0)},
    variations=(Variation("6,000 steps", {}, {"sink_0": 18.18}),),
    assertions=(most_models("6,000 steps", SINK, "a sink", "most models have a sink without a fixed BOS", TABLE_3),),
    not_at=dict.fromkeys(("mini", "paper"), "it asks what can be asked at nano"),
)

post_norm = Question(
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

feed_forward = Question(
    name="feed-forward",
    asks="Does the sink depend on the feed-forward network's activation?",
    source=TABLE_11,
    base=STUDY,
    seeds=(3, 4, 5),
    variations=tuple(
        Variation(ffn, {"model.ffn": ffn}, {"sink_0": sink, "loss": loss}, BASE if ffn == "swiglu" else None)
        for ffn, (sink, loss) in FEED_FORWARD.items()
    ),
    assertions=(
        most_models(
            ("relu", "gelu", "swish", "reglu", "geglu"),
            SINK,
            "always",
            "most models with ReLU, GELU, Swish, ReGLU and GEGLU have a sink",
            TABLE_11,
        ),
    ),
)


def heads_of(count: int) -> Variation:
    """Training with so many heads."""
    sink, loss = HEADS[count]
    label = "1 head" if count == 1 else f"{count} heads"
    seeds = BASE if count == 4 else None
    return Variation(label, {"model.num_attention_heads": count}, {"sink_0": sink, "loss": loss}, seeds)


heads = Question(
    name="heads",
    asks="Does the sink depend on the number of heads, or on how they are put together?",
    source=TABLE_12,
    base=STUDY,
    seeds=(3, 4, 5),
    variations=(
        *map(heads_of, HEADS),
        # The paper adds the outputs of 8 heads.
        Variation(
            "4 heads, added",
            {"model.num_attention_heads": 4, "model.head_combination": "add"},
            {"sink_0": 21.76, "loss": 3.74},
            range(3, 10),
        ),
    ),
    assertions=(
        most_models(
            ("8 heads", "2 heads", "1 head"), SINK, "always", "most models with 8, 2 and 1 heads have a sink", TABLE_12
        ),
        most_models("4 heads, added", SINK, "added", "most models whose heads are added have a sink", TABLE_12),
        within(
            0.1,
            rising("loss", ("8 heads", "4 heads", "2 heads", "1 head")),
            "equal losses",
            "from 8 heads to one the validation loss changes by less than .1 nats",
            TABLE_12,
            symmetric=True,
        ),
    ),
)

HE = "He et al. 2024, from third parties' notes"
PROTECTED = {"attention": "qk_norm", "model.norm_placement": "outlier_protected", "model.ffn": "relu"}

outlier_protected = Question(
    name="outlier-protected",
    asks="Does a block without norms, with damped branches and normalized queries and keys, avoid outliers?",
    source=HE,
    base=STUDY,
    seeds=NEW,
    variations=(Variation("softmax", seeds=NEW_BASE), Variation("protected", PROTECTED)),
    assertions=(
        above_ratio(
            1.25,
            log_ratio("kurtosis", "softmax", "protected"),
            "fewer outliers",
            "the kurtosis of hidden states is more than 1.25 times as large with softmax's usual block",
            HE,
        ),
    ),
)

QUESTIONS = (positions, rotary, post_norm, feed_forward, heads, outlier_protected)
