"""All checks, by topic, and a run of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from sinkscope.statistics.claims import Verdict
from sinkscope_replication.theory import (
    entropy,
    mixing,
    positions,
    propositions,
    recurrence,
    scaling,
    sensitivity,
    slots,
)
from sinkscope_replication.theory.check import Check

TOPICS: dict[str, tuple[Check, ...]] = {
    "repeated tokens": propositions.CHECKS,
    "positions": positions.CHECKS,
    "scaled and powered softmax": scaling.CHECKS,
    "entropy": entropy.CHECKS,
    "slots": slots.CHECKS,
    "linear attention": recurrence.CHECKS,
    "mixing": mixing.CHECKS,
    "sensitivity": sensitivity.CHECKS,
}

CHECKS: tuple[Check, ...] = tuple(check for checks in TOPICS.values() for check in checks)


Progress = Callable[[int, int, str], object]


def run_checks(checks: Sequence[Check] = CHECKS, progress: Progress | None = None) -> tuple[Verdict, ...]:
    """The verdicts on `checks`, in their order; `progress(done, total, name)` is called before each and at the end."""
    verdicts = []
    with one_thread():
        for done, each in enumerate(checks):
            if progress is not None:
                progress(done, len(checks), each.claim.name)
            verdicts.append(each.run())
    if progress is not None:
        progress(len(checks), len(checks), "")
    return tuple(verdicts)


def by_topic(
    topics: Mapping[str, Sequence[Check]] = TOPICS, progress: Progress | None = None
) -> dict[str, tuple[Verdict, ...]]:
    """The verdicts on all checks, each topic's under its name."""
    verdicts = iter(run_checks([each for checks in topics.values() for each in checks], progress))
    return {topic: tuple(next(verdicts) for _ in checks) for topic, checks in topics.items()}


@contextmanager
def one_thread() -> Iterator[None]:
    """Tensors this small are slower on several threads, tenfold where other processes want them too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def failing(verdicts: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """The claims that do not hold."""
    return tuple(verdict for verdict in verdicts if verdict.grade != "confirmed")
