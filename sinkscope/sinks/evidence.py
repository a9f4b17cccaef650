"""What choices of tokens need to know about texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from sinkscope.errors import InputError
from sinkscope.sinks.tokens import Rows


class NothingChosenError(InputError):
    """A choice that chooses no token of the texts: the message names what came nearest."""


@dataclass(frozen=True, eq=False)
class Received:
    """What tokens receive, from a measurement of one stack.

    `received` is α, `visible` the number of queries that see a position, `uniform` what uniform attention would give;
    a sample is a document: that of text `row`, from its real token `start` on. `layers`: the model's own numbers.
    `slots`: the mean share of attention that learned slots take.
    """

    received: Float[np.ndarray, "sample layer head position"]
    visible: Float[np.ndarray, "sample layer position"]
    uniform: Float[np.ndarray, "sample layer position"]
    layers: tuple[int, ...]
    row: Int[np.ndarray, " sample"]
    start: Int[np.ndarray, " sample"]
    slots: float = 0.0


@dataclass(frozen=True, eq=False)
class Evidence:
    """Texts, and what was measured in them; None for what was not.

    `peaks`: max_j |x_tj| of every token at the input of each linear map, (row, token), by what the map makes: down,
    up, query …; `channels`: |h_t| at a depth and dimension, (row, token), by that pair.
    """

    rows: Rows
    received: Received | None = None
    peaks: Mapping[str, tuple[Float[np.ndarray, "row token"], ...]] = field(default_factory=dict)
    channels: Mapping[tuple[int, int], Float[np.ndarray, "row token"]] = field(default_factory=dict)
