"""Claims in the words that questions share.

Margins were set before any run; the note of a question says where a claim was added or restated later. The softmax of
`nano` has its sink in 7 to 12 % of heads, and one of its 16 heads is 6.25 points; what the paper reports to vanish or
to stay differs by 10 points and more. So "has a sink" and "is lower" ask for 3 points, and for 1 point at equal loss,
where rates are read earlier in training and are smaller; "has none" asks for less than 1 %.

Norms and kurtoses differ by factors, so they are compared as ratios: a quarter more, wherever more is asked. That
margin was set when seeds 0 to 2 of some runs were known; before, differences of 1 were asked.
"""

from __future__ import annotations

from collections.abc import Sequence

from sinkscope.experiments.effects import (
    at_equal_loss,
    fails,
    gap,
    gap_at_equal_loss,
    largest_of,
    least,
    least_of,
    level,
    log_ratio,
    log_ratio_at_equal_loss,
)
from sinkscope.experiments.question import Assertion, above, above_ratio, below, within

POINTS, POINTS_AT_EQUAL_LOSS, NONE = 3.0, 1.0, 1.0
RATIO = 1.25  # of norms and kurtoses
BEHIND = 1.0  # nats above softmax at which training counts as failed
OURS = "our question: the source reports outliers or losses, and no sink rates"
EQUAL_LOSS = "at equal validation loss, the one that the slower of the two ends with"


def less_sink(
    label: str, than: str, source: str, margin: float = POINTS, margin_at_loss: float = POINTS_AT_EQUAL_LOSS
) -> tuple[Assertion, Assertion]:
    """A lower sink rate at position 0, at equal steps and at equal validation loss."""
    return (
        above(
            margin,
            gap("sink_0", than, label),
            f"{label}: lower than {than}",
            f"the sink rate at position 0 is lower with '{label}' than with '{than}' by more than {_points(margin)}, "
            "at equal steps",
            source,
        ),
        above(
            margin_at_loss,
            gap_at_equal_loss(than, label),
            f"{label}: lower than {than} at equal loss",
            f"the sink rate at position 0 is lower with '{label}' than with '{than}' by more than "
            f"{_points(margin_at_loss)}, {EQUAL_LOSS}",
            source,
        ),
    )


def less_massive(label: str, than: str, source: str, margin: float = RATIO) -> tuple[Assertion, Assertion]:
    """A first token that is less long beside the others, at equal steps and at equal validation loss."""
    return (
        above_ratio(
            margin,
            log_ratio("norm_ratio", than, label),
            f"{label}: less massive than {than}",
            f"the first token's norm ratio is more than {margin:g} times as large with '{than}' as with '{label}', "
            "at equal steps",
            source,
        ),
        above_ratio(
            margin,
            log_ratio_at_equal_loss(than, label),
            f"{label}: less massive than {than} at equal loss",
            f"the first token's norm ratio is more than {margin:g} times as large with '{than}' as with '{label}', "
            f"{EQUAL_LOSS}",
            source,
        ),
    )


def fewer_outliers(label: str, than: str, source: str, margin: float = RATIO) -> Assertion:
    """A lower kurtosis of the residual stream, whose Gaussian value is 3."""
    return above_ratio(
        margin,
        log_ratio("kurtosis", than, label),
        f"{label}: fewer outliers than {than}",
        f"the kurtosis of hidden states, at the depth where it is largest, is more than {margin:g} times as large with "
        f"'{than}' as with '{label}'",
        source,
    )


def keeps_sink(label: str, beside: str, source: str, what: str = "position 0") -> tuple[Assertion, Assertion]:
    """A sink at the first position, at equal steps and at the validation loss of another run."""
    return (
        above(
            POINTS,
            level("sink_0", label),
            f"{label}: a sink",
            f"with '{label}' more than {POINTS:g} % of heads have their sink at {what}",
            source,
        ),
        above(
            POINTS_AT_EQUAL_LOSS,
            at_equal_loss(label, beside),
            f"{label}: a sink at equal loss",
            f"with '{label}' more than {POINTS_AT_EQUAL_LOSS:g} % of heads have their sink at {what} at the larger of "
            f"two final validation losses, its own and that of '{beside}'",
            source,
        ),
    )


def all_keep_sink(labels: Sequence[str], beside: str, source: str) -> tuple[Assertion, Assertion]:
    """A sink at position 0 under every label, at equal steps and at the validation loss of another run."""
    return (
        above(
            POINTS,
            least_of("sink_0", labels),
            "always a sink",
            f"with each of {', '.join(labels)} more than {POINTS:g} % of heads have their sink at position 0",
            source,
        ),
        above(
            POINTS_AT_EQUAL_LOSS,
            lambda runs: least(at_equal_loss(label, beside)(runs) for label in labels),
            "always a sink at equal loss",
            f"with each of {', '.join(labels)} more than {POINTS_AT_EQUAL_LOSS:g} % of heads have their sink at "
            f"position 0 at the larger of two final validation losses, its own and that of '{beside}'",
            source,
        ),
    )


def no_sink(labels: Sequence[str], source: str) -> Assertion:
    """Under no label a sink at position 0."""
    return below(
        NONE,
        largest_of("sink_0", labels),
        "none",
        f"with {', '.join(labels)} less than {NONE:g} % of heads have their sink at position 0",
        source,
    )


def does_not_converge(label: str, beside: str, source: str) -> Assertion:
    """Training that diverges, or ends more than a nat above another's loss."""
    return above(
        0.5,
        fails(label, beside, BEHIND),
        f"{label}: fails",
        f"'{label}' does not converge: it diverges, or its loss ends more than {BEHIND:g} nats above that of "
        f"'{beside}' (the effect is 1 where it does, else 0)",
        source,
    )


def converges(label: str, beside: str, source: str) -> Assertion:
    """Training that does neither."""
    return within(
        0.5,
        fails(label, beside, BEHIND),
        f"{label}: converges",
        f"'{label}' converges: its loss ends at most {BEHIND:g} nats above that of '{beside}' (the effect is 0 where "
        "it does, else 1)",
        source,
    )


def _points(margin: float) -> str:
    return f"{margin:g} point{'' if margin == 1 else 's'}"
