"""Questions about what a key bias needs: the value behind it, and its channels (Gu et al. 2025, Tables 5 and 13)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sinkscope.experiments import Assertion, Contrast, Question, Runs, Withdrawn, above, below
from sinkscope.experiments.effects import gap, largest, rising, where
from sinkscope_replication.assertions import FRESH, NO_COST, by_mass_and_rate
from sinkscope_replication.questions.biases import K_BIAS, NO_SINK, ON_SLOT, REDUNDANT, WITHOUT_BOS
from sinkscope_replication.questions.variations import SOFTMAX, operation

FIXED = {
    "first": ((1, 70.03, 0.06, 3.72), (5, 44.43, 3.71, 3.72), (20, 1.51, 25.88, 3.71)),
    "uniform": ((1, 69.74, 2.15, 3.72), (5, 27.99, 5.93, 3.72), (20, 0.0, 11.21, 3.73)),
}
TABLE_5 = "Gu et al. 2025, Table 5"


def _length_decides(direction: str, published: str) -> tuple[Assertion, ...]:
    labels = tuple(f"{norm} {direction}" for norm in (20, 5, 1))
    shorter = f"the shorter the fixed value ('{direction}', norms 20, 5, 1), the"
    return (
        above(
            ON_SLOT,
            rising("slot_mass", labels),
            f"{direction}: shorter is better, by mass",
            f"{shorter} larger the sink mass of the bias: by more than 1 point along the fitted line",
            f"{TABLE_5}: {published}",
            FRESH,
        ),
        above(
            1.0,
            rising("slot", labels),
            f"{direction}: shorter is better",
            f"{shorter} more heads have their sink on the bias: more than 1 point of them along the fitted line",
            f"{TABLE_5}: {published}",
        ),
        above(
            ON_SLOT,
            gap("slot_mass", "zero", f"20 {direction}"),
            f"{direction}: a long value repels, by mass",
            f"a value of norm 20 ('{direction}') leaves less sink mass on the bias than a zero value, by more than 1 "
            "point",
            f"{TABLE_5}: {published}",
            FRESH,
        ),
        above(
            ON_SLOT,
            gap("slot", "zero", f"20 {direction}"),
            f"{direction}: a long value repels",
            f"a value of norm 20 ('{direction}') has fewer sinks on the bias than a zero value, by more than 1 point",
            f"{TABLE_5}: {published}",
        ),
        *by_mass_and_rate(
            above,
            1.0,
            lambda sink: where("softmax", sink(), 1.0, gap(sink(), f"20 {direction}", "zero"), NO_SINK),
            f"{direction}: the first token gets it",
            f"with a value of norm 20 ('{direction}') the sink {{measure}} at position 0 is larger than with a zero "
            "value, by more than {points}",
            f"{TABLE_5}: {published}",
        ),
    )


def _largest_cost(runs: Runs) -> float:
    """By how much the largest loss is above that with a zero value."""
    return (
        largest(runs[f"{norm} {direction}"]["loss"] for direction in FIXED for norm in (1, 5, 20))
        - (runs["zero"]["loss"])
    )


fixed_values = Question(
    name="fixed-values",
    asks="Must the value behind a sink be small?",
    source=TABLE_5,
    shared=WITHOUT_BOS,
    variations=(
        SOFTMAX,
        replace(K_BIAS, label="zero"),
        *(
            operation(
                "k_bias_fixed_v",
                f"{norm} {direction}",
                {"direction": direction, "norm": float(norm)},
                slot=slot,
                sink_0=sink,
                loss=loss,
            )
            for direction, levels in FIXED.items()
            for norm, slot, sink, loss in levels
        ),
    ),
    assertions=(
        *_length_decides("first", "Sink_* 1.51, 44.43, 70.03 %, and 73.34 % for zero; Sink_1 25.88 and 0.00 %"),
        *_length_decides("uniform", "Sink_* 0.00, 27.99, 69.74 %, and 73.34 % for zero; Sink_1 11.21 and 0.00 %"),
        below(
            NO_COST,
            _largest_cost,
            "no cost",
            f"the largest validation loss with one of these values is less than {NO_COST:g} nats above that with a "
            "zero value",
            f"{TABLE_5}: 3.71 to 3.73",
        ),
    ),
    note="Of three norms the rise along the fitted line is that from the first to the last. Values of nano's heads are "
    "about 5 long. Whether a first token gets the sink is refused where the model has none without the bias either. "
    "That claim, and what a cost is, were changed before the runs.",
    withdrawn=(
        Withdrawn(
            "zero: lower than 20 first, and 20 uniform",
            "the sink rate at position 0 is lower with a zero value than with one of norm 20, by more than 1 point",
            REDUNDANT,
        ),
    ),
)

LOW_RANK = {1: (32.18, 4.74), 11: (51.23, 1.94)}  # 11 of nano's 32 channels as 32 of the paper's 96
TABLE_13 = "Gu et al. 2025, Table 13"


def by_channels(
    effect: Callable[[str], Contrast], name: str, statement: str, source: str
) -> tuple[Assertion, Assertion]:
    """One claim on a bias by its mass, of which more than 0.33 points are asked, and by its rate: more than 1."""
    return (
        above(
            0.33,
            effect("slot_mass"),
            f"{name}, by mass",
            f"{statement.format(measure='more sink mass')}, by more than 0.33 points",
            source,
            FRESH,
        ),
        above(
            1.0,
            effect("slot"),
            name,
            f"{statement.format(measure='a higher sink rate')}, by more than 1 point",
            source,
        ),
    )


def _channels(count: int) -> str:
    return "1 channel" if count == 1 else f"{count} channels"


ZEROS, WHOLE = "a key of zeros", "the whole key"
THIRD = _channels(11)  # of 32; the paper's 32 are a third of 96

low_rank_key = Question(
    name="low-rank-key",
    asks="How many channels does a key bias need to be the sink?",
    source=TABLE_13,
    shared=WITHOUT_BOS,
    note="A key of zeros, which is softmax-off-by-one, has no learned channel: what one channel does is asked beside "
    "it, since that key alone takes 4.5 % of mass here. A head of nano has 32 channels, so that 11 of them are the "
    "share that 32 are in the paper. All this was written when the runs of the key of zeros and of the whole key were "
    "known, and before the others.",
    variations=(
        operation("softmax_off_by_one", ZEROS),
        *(
            operation("k_bias_lowrank", _channels(channels), {"d_a": channels}, slot=slot, sink_0=sink)
            for channels, (slot, sink) in LOW_RANK.items()
        ),
        replace(K_BIAS, label=WHOLE),
    ),
    assertions=(
        *by_channels(
            lambda slot: gap(slot, "1 channel", ZEROS),
            "1 channel: more than a key of zeros",
            "one learned channel of the key has {measure} on the bias than a key of zeros",
            f"{TABLE_13}: 32.18 %",
        ),
        *by_channels(
            lambda slot: rising(slot, ("1 channel", THIRD, WHOLE)),
            "more channels, more",
            "from one learned channel to 11 and to the whole key there is {measure} on the bias, along the fitted line",
            f"{TABLE_13}: 32.18, 51.23 and 73.34 % (1, 32 and all of 96 channels)",
        ),
    ),
    withdrawn=(
        Withdrawn(
            "1 channel: lower than softmax",
            "the sink rate at position 0 is lower with '1 channel' than with 'softmax' by more than 1 point",
            REDUNDANT,
        ),
        Withdrawn(
            "1 channel: mass on the bias",
            "with '1 channel' the sink mass of the bias is more than 1 %, and more than 1 % of heads have their sink "
            "there",
            "a key of zeros has more than that, so that the channel had nothing to add",
        ),
        Withdrawn(
            "more channels: 32 and 1",
            "32 channels have more sink mass on the bias than one, by more than 1 point",
            "32 channels are the whole key here, and were compared with a third of it in the paper",
        ),
    ),
)

QUESTIONS = (fixed_values, low_rank_key)
