"""All checks, by topic, and a run of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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


def run_checks(checks: Sequence[Check] = CHECKS) -> tuple[Verdict, ...]:
    """The verdicts on `checks`, in their order."""
    with one_thread():
        return tuple(each.run() for each in checks)


def by_topic(topics: Mapping[str, Sequence[Check]] = TOPICS) -> dict[str, tuple[Verdict, ...]]:
    """The verdicts on all checks, each topic's under its name."""
    return {topic: run_checks(checks) for topic, checks in topics.items()}


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
