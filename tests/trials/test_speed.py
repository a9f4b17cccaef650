"""Times are medians of turns, by a clock that the caches themselves move."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from sinkscope.trials import Arm, cached, speed, speeds
from tests.trials.caches import Lookup, texts


class Clock:
    """Stands still, but for what caches add; the first round of all is slow, and so is the first token of a turn."""

    def __init__(self) -> None:
        self.now = 0.0
        self.turns: list[str] = []

    def __call__(self) -> float:
        return self.now


class TimedLayer(DynamicLayer):
    def __init__(self, clock: Clock, name: str, step: float) -> None:
        super().__init__()
        self.clock, self.step = clock, step
        self.first = clock.turns.count(name) == 0
        self.passes = 0
        clock.turns.append(name)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        warm = self.passes > speed.WARM_UP
        self.clock.now += self.step * key_states.shape[2] * (100 if self.first or not (warm or self.passes == 0) else 1)
        self.passes += 1
        return super().update(key_states, value_states)


def timed(clock: Clock, name: str, step: float) -> Arm:
    def made(model: object) -> DynamicCache:
        cache = DynamicCache()
        cache.layers = [TimedLayer(clock, name, step)]
        return cache

    return cached(name, made)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for name in ("thread_time", "perf_counter"):
        monkeypatch.setattr(speed.time, name, clock)
    return clock


def test_what_is_said_is_what_a_token_takes_once_warm(clock: Clock) -> None:
    arms = [timed(clock, "one", 1.0), timed(clock, "two", 2.0)]
    found = speeds(Lookup(40), texts(1, 16), arms, context=5, rounds=3)
    assert {name: (one.prefill, one.step) for name, one in found.items()} == {"one": (5, 1), "two": (10, 2)}


def test_arms_take_turns(clock: Clock) -> None:
    speeds(Lookup(40), texts(1, 12), [timed(clock, "one", 1.0), timed(clock, "two", 2.0)], context=5, rounds=2)
    assert clock.turns == ["one", "two"] * 3


def test_the_clock_is_the_threads_own_where_one_thread_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    for threads, name in ((1, "thread"), (2, "wall")):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert speed.clock_of(Lookup(3)) == name
