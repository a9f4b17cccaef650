from __future__ import annotations

from collections.abc import Callable

import pytest
from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import BatchSampler

from sinkscope.errors import InputError
from sinkscope.training import Recipe
from sinkscope.training.distributed.batches import BatchSplit, split_batch

Make = Callable[..., Recipe]


@pytest.mark.parametrize(("batch", "micro", "world"), [(4, None, 2), (12, 2, 3), (12, 4, 3), (8, 8, 4), (6, 1, 1)])
def test_a_step_sees_the_same_sequences_on_any_number_of_processes(
    batch: int, micro: int | None, world: int, tiny: Make
) -> None:
    recipe = tiny(f"batch_size={batch}", f"micro_batch={'null' if micro is None else micro}")
    dealt = split_batch(recipe, world, 8)
    assert dealt.train * dealt.accumulation * world == batch
    assert dealt.train <= (micro or batch)
    steps = [set(range(step * batch, (step + 1) * batch)) for step in range(3)]
    items = range(3 * batch)
    of_each = [list(BatchSamplerShard(BatchSampler(items, dealt.train, False), world, rank)) for rank in range(world)]
    for step, expected in enumerate(steps):
        own = slice(step * dealt.accumulation, (step + 1) * dealt.accumulation)
        seen = [item for batches in of_each for batch_of_one in batches[own] for item in batch_of_one]
        assert sorted(seen) == sorted(expected)


@pytest.mark.parametrize(
    ("changes", "world", "windows", "expected"),
    [
        (("batch_size=4",), 1, 64, BatchSplit(4, 1, 4)),
        (("batch_size=4",), 1, 3, BatchSplit(4, 1, 3)),
        (("batch_size=512", "micro_batch=16"), 4, 800, BatchSplit(16, 8, 4)),
        (("batch_size=6",), 2, 5, BatchSplit(3, 1, 1)),
    ],
)
def test_sizes(changes: tuple[str, ...], world: int, windows: int, expected: BatchSplit, tiny: Make) -> None:
    assert split_batch(tiny(*changes), world, windows) == expected


@pytest.mark.parametrize(
    ("changes", "world", "said"),
    [
        (("batch_size=4",), 3, "does not divide over 3 processes: start 2, or set batch_size=3"),
        (("batch_size=2",), 8, "start 2, or set batch_size=8"),
        (("batch_size=12", "micro_batch=4"), 2, "the 6 sequences per step of each of 2 processes: set micro_batch=3"),
    ],
)
def test_a_batch_that_does_not_divide_names_one_that_does(
    changes: tuple[str, ...], world: int, said: str, tiny: Make
) -> None:
    with pytest.raises(InputError, match=said):
        split_batch(tiny(*changes), world, 8)


def test_the_hash_says_nothing_of_processes(tiny: Make) -> None:
    assert tiny("batch_size=12", "micro_batch=3").hash({}) == tiny("batch_size=12").hash({})
