"""From numbers to words: the thresholds of the words, the order in which they are tested, and numbers in sentences."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sinkscope.statistics import Interval

TOLERANCE = 0.02  # nats a token
BREAKS = 1.0  # nats a token lost
OF_UNIFORM = 0.9  # of the loss of guessing
REDUNDANT = 0.1  # share of a cost below which what is gained is not worth having
# Over 39 ways to round SmolLM2-135M (`benchmarks/agreement.py`) 1 − agreement is about 0.58 √KL: .92 at .02 and
# .82 at .1. The bounds lie below that, so that they catch arms that change more tokens than their KL lets expect.
FREE_AGREEMENT, SMALL_AGREEMENT = 0.90, 0.80
SMALL = 5  # times the tolerance


@dataclass(frozen=True)
class Grade:
    """A word, and why it is not another one where that helps."""

    word: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.word} ({self.why})" if self.why else self.word


def grade(
    kl: Interval,
    agreement: float,
    *,
    lost: Interval | None = None,
    nats: float | None = None,
    reference: float | None = None,
    vocabulary: int | None = None,
    texts: int,
    tolerance: float = TOLERANCE,
) -> Grade:
    """What an arm costs, in a word.

    Args:
        kl: KL(reference ‖ arm), nats a token, with its interval over texts.
        agreement: Share of places at which both find the same token most likely.
        lost: Nats a token lost, with its interval; None where the model predicts no next token.
        nats: The arm's own loss; with `vocabulary`, a loss near that of guessing breaks a model too.
        reference: The loss of the unchanged model; for a model that guesses itself, its own loss does not tell.
        vocabulary: Number of tokens.
        texts: How many texts the intervals are over.
        tolerance: τ, nats a token.
    """
    if lost is not None and lost.low > BREAKS:
        return Grade("breaks")
    guessing = OF_UNIFORM * math.log(vocabulary) if vocabulary else math.inf
    if nats is not None and nats > guessing and (reference is None or reference <= guessing):
        return Grade("breaks", "its loss is near that of guessing")
    for word, bound, share in (("free", tolerance, FREE_AGREEMENT), ("small", SMALL * tolerance, SMALL_AGREEMENT)):
        if kl.high <= bound and agreement >= share:
            return Grade(word)
    if kl.low > tolerance:
        return Grade("costs")
    if kl.high <= SMALL * tolerance:
        return Grade(
            "cannot tell", f"KL is small, and {100 * (1 - agreement):.0f} % of the likeliest tokens are others"
        )
    return Grade("cannot tell", _enough(kl, texts, tolerance))


def _enough(kl: Interval, texts: int, tolerance: float) -> str:
    """About how many texts would tell: the half-width shrinks with the root of their number."""
    half = kl.high - kl.value
    if not math.isfinite(half):
        return "one text has no interval"
    # It suffices that the interval leaves out one bound; the farther one takes fewer texts.
    margins = [abs(kl.value - tolerance), SMALL * tolerance - kl.value]
    margin = max(margins)
    if margin <= 0 or half <= 0:
        return ""
    needed = math.ceil(texts * (half / margin) ** 2)
    return f"about {max(needed, texts + 1)} texts would"


def redundant(gain: Interval, cost: float) -> str:
    """Whether something that gains this much of a cost is redundant: yes, no, or cannot tell.

    "yes" where the whole interval of the gain is below a tenth of the cost; "no" where it is not, and lies above 0.
    """
    if gain.high < REDUNDANT * cost:
        return "yes"
    return "no" if gain.low > 0 else "cannot tell"


def nats(interval: Interval, *, signed: bool = False) -> str:
    """A number of nats with its interval, two digits that count: 0.039 (0.031 to 0.047)."""
    size = max(abs(end) for end in (interval.value, interval.low, interval.high) if math.isfinite(end))
    digits = 4 if size < 0.1 else 3 if size < 1 else 2
    value = f"{interval.value:{'+' if signed else ''}.{digits}f}"
    return value if interval.unbounded else f"{value} ({interval.low:.{digits}f} to {interval.high:.{digits}f})"


def percent(interval: Interval, digits: int = 0) -> str:
    """A share in percent, with its interval: 39 % (31 to 47)."""
    value, low, high = (f"{100 * end:.{digits}f}" for end in (interval.value, interval.low, interval.high))
    return f"{value} %" if interval.unbounded else f"{value} % ({low} to {high})"


def explained(tolerance: float = TOLERANCE) -> str:
    """The table of `grade`, as `--explain` prints it."""
    rows = (
        ("breaks", f"more than {BREAKS:g} nat a token lost (lower end), or a loss above {OF_UNIFORM:g} of guessing's"),
        ("free", f"KL at most {tolerance:g} nats a token (upper end), and {100 * FREE_AGREEMENT:g} % of tokens agree"),
        ("small", f"KL at most {SMALL * tolerance:g} (upper end), and {100 * SMALL_AGREEMENT:g} % of tokens agree"),
        ("costs", f"KL above {tolerance:g} (lower end)"),
        ("cannot tell", "anything else, followed by how many texts would tell"),
    )
    width = max(len(word) for word, _ in rows)
    lines = [f"{word:<{width}}  {meaning}" for word, meaning in rows]
    return "\n".join([*lines, "The first that holds is the word. Intervals are 95 %, Student's t over texts."])
