"""Where the curves of a run are read."""

from __future__ import annotations

import math

from sinkscope.experiments.observed import Observed

LOSS, SINK, NORM_RATIO = "validation_loss", "sink/position_0", "sink/hidden_norm_ratio"


def when_loss_is(run: Observed, loss: float, metric: str) -> float:
    """A curve's value where the validation loss first falls to `loss`; NaN where it never does."""
    losses, values = run.curves.get(LOSS, ()), run.curves.get(metric, ())
    known = [(a, b) for a, b in zip(losses, values, strict=False) if not (math.isnan(a) or math.isnan(b))]
    before: tuple[float, float] | None = None
    for reached, value in known:
        if reached <= loss:
            if before is None or before[0] == reached:
                return value
            share = (before[0] - loss) / (before[0] - reached)
            return before[1] + share * (value - before[1])
        before = (reached, value)
    return math.nan


def last(run: Observed, metric: str, share: float = 1.0) -> float:
    """A curve's last known value in the first `share` of the steps (0 to 1); NaN where there is none."""
    known = [value for step, value in _known(run, metric) if step <= share * run.steps[-1]]
    return known[-1] if known else math.nan


def half_way(run: Observed, metric: str) -> float:
    """The share of the steps after which a curve is for the first time half way from its first to its last value.

    NaN for a curve of fewer than two values, and for one that ends where it began.
    """
    known = _known(run, metric)
    if len(known) < 2 or known[0][1] == known[-1][1]:
        return math.nan
    (_, first), (end, final) = known[0], known[-1]
    return next(step for step, value in known if (value - first) / (final - first) >= 0.5) / end


def _known(run: Observed, metric: str) -> list[tuple[int, float]]:
    values = zip(run.steps, run.curves.get(metric, ()), strict=False)
    return [(step, value) for step, value in values if not math.isnan(value)]
