"""What is planted: the known answer, as a value, and the numbers it is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

SINK_TOKEN = 3  # ordinary tokens are drawn from the ids above it, the ids below never appear

# Reserved dimensions of the residual stream. No random weight reads or writes them, nor `Plant.dimension`.
CONSTANT = 0  # 0.5 in every token's embedding: what planted queries read
MARK = 1  # 1.5 in the embedding of SINK_TOKEN, 0 in all others: what the feed-forward that writes the sink reads

MASSIVE = 1000.0  # what a massive activation measures
MODERATE = 3.0  # what a sink without massive activation carries in its place: ten times an ordinary entry
ORDINARY = 0.3  # standard deviation of the entries of an ordinary token's embedding
FAINT = 0.05  # without a massive activation, the factor on SINK_TOKEN's other entries: only so are its values near 0


@dataclass(frozen=True)
class Plant:
    """A sink and its mechanism.

    SINK_TOKEN gets a large entry in one dimension of the residual stream; queries of the planted heads share a
    component, and only that entry gives a key a component along it. Before the onset, after the decay, or with it
    set to zero, this is a token like any other (with `massive=False`: one with faint content, drained at every depth).

    sinks: positions at which `planted_ids` puts SINK_TOKEN; without any, nothing is there to be found.
    massive: the entry is MASSIVE, else MODERATE (|a| far below 100).
    attended: keys read the entry. False: a massive activation that is no sink.
    value: what the entry adds to the values of its token. "drained": nothing, so ‖v‖ ≈ 0 there, as the norm has shrunk
        everything else; "broadcast": the same vector of ordinary norm for every query.
    dimension: where the entry stands, from 2 on (0 and 1 are reserved).
    onset: first depth with the entry. 0: it is in the embedding; n: the feed-forward of block n - 1 writes it.
    decay: first depth without it again, taken away by the feed-forward of block decay - 1. None: it stays.
    heads: the (layer, query head) pairs that attend to the sink; None: all, in the layers where the entry is.
    """

    sinks: tuple[int, ...] = (0,)
    massive: bool = True
    attended: bool = True
    value: Literal["drained", "broadcast"] = "drained"
    dimension: int = 5
    onset: int = 1
    decay: int | None = None
    heads: tuple[tuple[int, int], ...] | None = None

    def __post_init__(self) -> None:
        if self.dimension in (CONSTANT, MARK):
            raise ValueError(f"dimension {self.dimension} is reserved")
        if self.decay is not None and self.decay <= self.onset:
            raise ValueError(f"decay at depth {self.decay} must come after onset at depth {self.onset}")

    @property
    def size(self) -> float:
        """The entry that makes the sink."""
        return MASSIVE if self.massive else MODERATE

    @property
    def content(self) -> float:
        """Factor on the random entries of SINK_TOKEN's embedding."""
        return 1.0 if self.massive else FAINT

    @property
    def reserved(self) -> list[int]:
        """Dimensions of the residual stream that only planted weights touch."""
        return [CONSTANT, MARK, self.dimension]

    def depths(self, layers: int) -> range:
        """Depths 0 … layers of the residual stream at which the entry is there; layer l reads depth l."""
        return range(self.onset, layers + 1 if self.decay is None else self.decay)

    def attending(self, layers: int, heads: int) -> tuple[tuple[int, int], ...]:
        """The (layer, query head) pairs whose attention goes to the sink."""
        if not self.attended:
            return ()
        if self.heads is not None:
            return self.heads
        return tuple((layer, head) for layer in self.depths(layers) if layer < layers for head in range(heads))


F3 = Plant()
NULL = Plant(sinks=(), massive=False, attended=False)


def planted_ids(plant: Plant = F3, samples: int = 4, tokens: int = 32, seed: int = 0, vocab: int = 97) -> torch.Tensor:
    """(samples, tokens) ids: ordinary tokens drawn uniformly, SINK_TOKEN at the positions of the plant."""
    ids = torch.randint(SINK_TOKEN + 1, vocab, (samples, tokens), generator=torch.Generator().manual_seed(seed))
    ids[:, list(plant.sinks)] = SINK_TOKEN
    return ids
