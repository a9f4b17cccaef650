"""The division of a step's sequences among processes, which changes no number."""

from __future__ import annotations

from dataclasses import dataclass

from sinkscope.errors import InputError
from sinkscope.training.recipe import Recipe


@dataclass(frozen=True)
class BatchSplit:
    """Each process trains on `accumulation` times `train` sequences per step, and validates on `scored` at once.

    world · accumulation · train = batch_size. With item i of the order in step i // batch_size and process r reading
    every world-th batch of `train` items, a step sees the same sequences for any number of processes.
    """

    train: int
    accumulation: int
    scored: int


def split_batch(recipe: Recipe, world: int, validation_windows: int) -> BatchSplit:
    """The split of a recipe's batch over `world` processes; `micro_batch` bounds the sequences in memory at once.

    Validation batches are those of one process, divided; if they do not divide, one sequence at a time. Raises
    `InputError` if the batch does not divide.
    """
    if recipe.batch_size % world:
        multiple = max(1, round(recipe.batch_size / world)) * world
        raise InputError(
            f"batch_size = {recipe.batch_size} does not divide over {world} processes: start "
            f"{_nearest_divisor(recipe.batch_size, world)}, or set batch_size={multiple} (another run)"
        )
    share = recipe.batch_size // world
    train = min(recipe.micro_batch or share, share)
    if share % train:
        raise InputError(
            f"micro_batch = {train} does not divide the {share} sequences per step of each of {world} processes: "
            f"set micro_batch={_nearest_divisor(share, train)} (the same run)"
        )
    together = min(recipe.micro_batch or recipe.batch_size, validation_windows)
    return BatchSplit(train, share // train, together // world if together % world == 0 else 1)


def _nearest_divisor(number: int, wanted: int) -> int:
    divisors = [candidate for candidate in range(1, number + 1) if number % candidate == 0]
    return min(divisors, key=lambda candidate: (abs(candidate - wanted), candidate))
