"""Claims in the words that questions share.

Margins were set before any run; the note of a question says where a claim was added or restated later. The softmax of
`nano` has its sink in 6 to 12 % of heads, and one of its 16 heads is 6.25 points; what the paper reports to vanish or
to stay differs by 10 points and more. So "has a sink" and "is lower" ask for 3 points, at equal steps and at equal loss
alike, "has none" for less than 1 %. Of the mass "has a sink" asks for 2.5 %, half of what that softmax has: models none
of whose heads has a sink reach 2.4 %. One point was asked before that was seen.

A rate that counts 0, 1 or 2 heads decides little, so questions are decided by the sink mass (`metrics.sink_mass`), of
which that softmax has about 5 %: a third of the points that are asked of the rate. It was chosen when seeds 0 to 2 of
some runs had been seen, and is therefore judged on seeds 3 and up. Rates, which the paper publishes, are judged on all
seeds, as before. Where the sink stands is a position, and no amount (`strongest_position`); which threshold decides is
asked of rates; the norm ratio at equal loss is refused where the control's rate has not formed, since runs of before
hold no mass; synthetic tasks have measures of their own.

Norms and kurtoses differ by factors, so they are compared as ratios: a quarter more, wherever more is asked. That
margin was set when seeds 0 to 2 of some runs were known; before, differences of 1 were asked.

"No cost in loss" asks that a loss is not higher by 0.05 nats; one that is lower costs nothing. It was asked as an
equality before, which a better model failed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sinkscope.experiments import Assertion, SeedEffect, SeedWise, above, above_ratio, below
from sinkscope.experiments.effects import (
    MASS,
    SINK,
    UNTRAINED,
    at_equal_loss,
    behind,
    gap,
    gap_at_equal_loss,
    largest_of,
    least,
    least_of,
    level,
    log_ratio,
    log_ratio_at_equal_loss,
    where_trained,
)

POINTS, NONE = 3.0, 1.0
OF_MASS = 1 / 3  # of the points that are asked of a rate
NO_MASS = 0.5
HAS_MASS = 2.5
FRESH = 3  # the first seed that had not been seen when the mass was chosen
RATIO = 1.25  # of norms and kurtoses
BEHIND = 1.0  # nats above softmax at which training counts as failed
NO_COST = 0.05  # nats
OURS = "our question: the source reports outliers or losses, and no sink rates"
EQUAL_LOSS = "at equal validation loss, the one that the slower of the two ends with"

_DIVERGED = f"a run that diverged counts as {UNTRAINED:g} nats above it"

Claims = Callable[[float, SeedEffect, str, str, str, int], Assertion]  # `above`, `below`, `within`
Sink = Callable[..., str]  # of a position and a reading the metric's name: `mass_at`, `rate_at`


def mass_at(position: int = 0, reading: str = "") -> str:
    """The sink mass at a position, as it is or under a reading such as "/tokens=32"."""
    return f"sink_mass{f'_{position}' if position else ''}{reading}"


def rate_at(position: int = 0, reading: str = "") -> str:
    """The sink rate there."""
    return f"sink_{position}{reading}"


def by_mass_and_rate(
    kind: Claims, margin: float, effect: Callable[[Sink], SeedEffect], name: str, statement: str, source: str
) -> tuple[Assertion, Assertion]:
    """One claim by the sink mass, which decides, and by the sink rate. `margin`: points of the rate.

    `statement`: where it says `{measure}` and `{points}`, each has its own.
    """
    mass = round(margin * OF_MASS, 2)
    said = ((statement.format(measure=m, points=_points(abs(p)))) for m, p in (("mass", mass), ("rate", margin)))
    return (
        kind(mass, effect(mass_at), f"{name}, by mass", next(said), source, FRESH),
        kind(margin, effect(rate_at), name, next(said), source, 0),
    )


def less_sink(label: str, than: str, source: str, margin: float = POINTS) -> tuple[Assertion, ...]:
    """Less of a sink at position 0, by its mass and by its rate, at equal steps and at equal validation loss."""
    mass = round(margin * OF_MASS, 2)
    more = f"at position 0 is lower with '{label}' than with '{than}' by more than"
    return (
        above(
            mass,
            gap("sink_mass", than, label),
            f"{label}: less mass than {than}",
            f"the sink mass {more} {_points(mass)}, at equal steps",
            source,
            FRESH,
        ),
        above(
            mass,
            gap_at_equal_loss(than, label, MASS),
            f"{label}: less mass than {than} at equal loss",
            f"the sink mass {more} {_points(mass)}, {EQUAL_LOSS}",
            source,
            FRESH,
        ),
        above(
            margin,
            gap("sink_0", than, label),
            f"{label}: lower than {than}",
            f"the sink rate {more} {_points(margin)}, at equal steps",
            source,
        ),
        above(
            margin,
            gap_at_equal_loss(than, label),
            f"{label}: lower than {than} at equal loss",
            f"the sink rate {more} {_points(margin)}, {EQUAL_LOSS}",
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


def keeps_sink(label: str, beside: str, source: str, what: str = "position 0") -> tuple[Assertion, ...]:
    """A sink at the first position, by mass and rate, at equal steps and at the validation loss of another run."""
    return (
        above(
            HAS_MASS,
            level("sink_mass", label),
            f"{label}: mass",
            f"with '{label}' the sink mass at {what} is more than {HAS_MASS:g} %",
            source,
            FRESH,
        ),
        above(
            HAS_MASS,
            at_equal_loss(label, beside, MASS),
            f"{label}: mass at equal loss",
            f"with '{label}' the sink mass at {what} is more than {HAS_MASS:g} % {_at_loss_of(beside)}",
            source,
            FRESH,
        ),
        above(
            POINTS,
            level("sink_0", label),
            f"{label}: a sink",
            f"with '{label}' more than {POINTS:g} % of heads have their sink at {what}",
            source,
        ),
        above(
            POINTS,
            at_equal_loss(label, beside),
            f"{label}: a sink at equal loss",
            f"with '{label}' more than {POINTS:g} % of heads have their sink at {what} {_at_loss_of(beside)}",
            source,
        ),
    )


def all_keep_sink(labels: Sequence[str], beside: str, source: str) -> tuple[Assertion, ...]:
    """A sink at position 0 under every label, by mass and rate, at equal steps and at another run's validation loss."""
    each = f"with each of {', '.join(labels)}"

    def least_at_equal_loss(metric: str) -> SeedWise:
        made = [at_equal_loss(label, beside, metric) for label in labels]
        refusal = f"at the loss that is compared one of these sinks, or that of '{beside}', is less than half formed"
        return SeedWise(lambda runs: least(one(runs) for one in made), refusal)

    return (
        above(
            HAS_MASS,
            least_of("sink_mass", labels),
            "always mass",
            f"{each} the sink mass at position 0 is more than {HAS_MASS:g} %",
            source,
            FRESH,
        ),
        above(
            HAS_MASS,
            least_at_equal_loss(MASS),
            "always mass at equal loss",
            f"{each} the sink mass at position 0 is more than {HAS_MASS:g} % {_at_loss_of(beside)}",
            source,
            FRESH,
        ),
        above(
            POINTS,
            least_of("sink_0", labels),
            "always a sink",
            f"{each} more than {POINTS:g} % of heads have their sink at position 0",
            source,
        ),
        above(
            POINTS,
            least_at_equal_loss(SINK),
            "always a sink at equal loss",
            f"{each} more than {POINTS:g} % of heads have their sink at position 0 {_at_loss_of(beside)}",
            source,
        ),
    )


def no_sink(
    labels: Sequence[str], source: str, beside: str = "", behind: float = BEHIND, name: str = ""
) -> tuple[Assertion, Assertion]:
    """Under no label a sink at position 0, by mass and by rate. `name`: before those of the claims.

    `beside`: refused where a loss ends more than `behind` nats above that of this one.
    """

    def of(metric: str) -> SeedEffect:
        effect = largest_of(metric, labels)
        return where_trained(labels, beside, behind, effect) if beside else effect

    return (
        below(
            NO_MASS,
            of("sink_mass"),
            f"{name}no mass",
            f"with {', '.join(labels)} the sink mass at position 0 is less than {NO_MASS:g} %",
            source,
            FRESH,
        ),
        below(
            NONE,
            of("sink_0"),
            f"{name}none",
            f"with {', '.join(labels)} less than {NONE:g} % of heads have their sink at position 0",
            source,
        ),
    )


def not_massive(label: str, source: str, beside: str = "") -> Assertion:
    """A first token that is less than twice as long as the others, at every depth; `beside` as for `no_sink`."""
    effect: SeedEffect = level("norm_ratio", label)
    return below(
        2.0,
        where_trained((label,), beside, BEHIND, effect) if beside else effect,
        f"{label}: not massive",
        f"with '{label}' the first token is less than twice as long as the others, at every depth",
        source,
    )


def no_cost(label: str, beside: str, source: str) -> Assertion:
    """A final validation loss that is not higher."""
    return below(
        NO_COST,
        gap("loss", label, beside),
        f"{label}: no cost",
        f"the validation loss with '{label}' ends less than {NO_COST:g} nats above that with '{beside}'",
        source,
    )


def does_not_converge(label: str, beside: str, source: str) -> Assertion:
    """Training that diverges, or ends more than a nat above another's loss."""
    return above(
        BEHIND,
        behind(label, beside),
        f"{label}: fails",
        f"'{label}' does not converge: its loss ends more than {BEHIND:g} nat above that of '{beside}' ({_DIVERGED})",
        source,
    )


def converges(label: str, beside: str, source: str) -> Assertion:
    """Training that does neither."""
    return below(
        BEHIND,
        behind(label, beside),
        f"{label}: converges",
        f"'{label}' converges: its loss ends less than {BEHIND:g} nat above that of '{beside}' ({_DIVERGED})",
        source,
    )


def _at_loss_of(beside: str) -> str:
    return f"at the larger of two final validation losses, its own and that of '{beside}'"


def _points(margin: float) -> str:
    return f"{margin:g} point{'' if margin == 1 else 's'}"
