"""Statistics over all tokens of a row, such as a median, which cannot be accumulated over forward passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from sinkscope.errors import InputError, check_whole
from sinkscope.measurement.observers.observer import Hidden, LayerSums, Observer, Piece

CONTINUED = "continued"
SAMPLE = 4096  # sampled values that bracket a median
Statistics = Callable[[Float[Tensor, "position width"]], Mapping[str, Tensor]]


def real_rows(hidden: Hidden) -> Iterator[Float[Tensor, "position width"]]:
    """The real tokens of each row in fp32; views if nothing is padded and the model computes in fp32."""
    for index, values in enumerate(hidden.values):
        yield (values if hidden.real is None else values[hidden.real[index]]).float()


def whole_rows(hidden: Hidden, statistics: Statistics) -> Iterable[Piece]:
    """`statistics` of each row, by name; rows that a cache continues are only marked as continued."""
    if hidden.start:
        yield Piece(CONTINUED, hidden.values.new_ones(len(hidden.values), 1, dtype=torch.float32))
        return
    rows = [statistics(values) if len(values) else _of_nothing(values, statistics) for values in real_rows(hidden)]
    for name in rows[0]:
        values = [row[name] for row in rows]
        if len({value.shape for value in values}) > 1:  # lists of as many entries as a row has
            values = list(pad_sequence(values, batch_first=True))
        yield Piece(name, torch.stack(values)[:, None])


def _of_nothing(values: Float[Tensor, "0 width"], statistics: Statistics) -> Mapping[str, Tensor]:
    """Zeros for a row without tokens, shaped as the statistics of a row."""
    return {
        name: torch.zeros_like(values_of_row)
        for name, values_of_row in statistics(values.new_zeros(1, values.shape[1])).items()
    }


def whole(layer: LayerSums, name: str) -> Float[Tensor, "batch heads *n"]:
    """The statistic `name`; NaN for rows without tokens and for rows read in several passes."""
    values = layer.sums[name]
    if CONTINUED in layer.sums:
        return torch.full_like(values, torch.nan)
    empty = ~layer.queries.any(-1)
    return values.masked_fill(empty.view(-1, *(1 for _ in values.shape[1:])), torch.nan)


def lower_median(values: Float[Tensor, "*rows n"]) -> Float[Tensor, "*rows"]:
    """Median of the last axis, the lower one of two middle values; on the CPU numpy takes a third of torch's time.

    Undefined for rows with a NaN.
    """
    if values.device.type != "cpu":
        return values.median(-1).values
    middle = (values.shape[-1] - 1) // 2
    if values.ndim == 1:
        return torch.tensor(_ranked(values.numpy(), middle), dtype=values.dtype)
    return torch.from_numpy(np.partition(values.numpy(), middle, axis=-1)[..., middle : middle + 1])[..., 0]


def where(mask: Bool[Tensor, "n"]) -> Int[Tensor, "_"]:
    """Indices of what is True; on the CPU numpy takes a third of torch's time."""
    return mask.nonzero()[:, 0] if mask.device.type != "cpu" else torch.from_numpy(np.flatnonzero(mask.numpy()))


def _ranked(values: np.ndarray, rank: int) -> np.floating:
    """The exact value of this rank; in a long list, a sample first brackets it."""
    sample = np.sort(values[:: len(values) // SAMPLE | 1])  # an odd step meets every dimension of even widths
    # The bracket is a guess and the result exact: where `below` shows that the rank is outside, all is partitioned.
    place, margin = len(sample) * rank // len(values), len(sample) // 32
    if place >= margin > 0 and place + margin < len(sample):
        low, high = sample[place - margin], sample[place + margin]
        below = np.count_nonzero(values < low)
        between = values[(values >= low) & (values <= high)]
        if below <= rank < below + len(between):
            return np.partition(between, rank - below)[rank - below]
    return np.partition(values, rank)[rank]


def sorted_positions(positions: Any, expected: str = "numbers such as [0, 3]") -> tuple[int, ...]:
    """Positions of real tokens in order, each once. Raises `InputError` for anything but whole numbers from 0 on."""
    given = tuple(positions) if isinstance(positions, Iterable) else ()
    if not given or not all(
        isinstance(one, int | np.integer) and not isinstance(one, bool) and one >= 0 for one in given
    ):
        raise InputError(f"positions = {positions!r}: expected {expected}")
    return tuple(sorted({int(one) for one in given}))


def checked_positions(positions: Sequence[int]) -> tuple[int, ...]:
    """Positions of real tokens as a tuple. Raises `InputError` unless they are whole numbers that rise from 0 on."""
    rising = "rising numbers of tokens such as (0, 3)"
    numbers = sorted_positions(positions, rising)
    if numbers != tuple(positions):
        raise InputError(f"positions = {positions!r}: expected {rising}")
    return numbers


@dataclass(frozen=True)
class ProbeObserver(Observer):
    """An observer that keeps `count` numbers of the residual stream for each token at `positions`."""

    count: int
    positions: Sequence[int] = (0,)

    def __post_init__(self) -> None:
        check_whole("count", self.count)
        object.__setattr__(self, "positions", checked_positions(self.positions))

    @property
    def reads_blocks(self) -> bool:
        return True
