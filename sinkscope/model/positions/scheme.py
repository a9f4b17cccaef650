"""What a position scheme is: up to three ways in which a token's position enters the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from sinkscope.attention import Tokens, Visibility
from sinkscope.errors import InputError


@dataclass(frozen=True, eq=False)
class DistanceBias:
    """b[q, k] = f(position(q) − position(k)), a few rows at a time: no T×T tensor is ever written out.

    `of` maps distances (batch, rows, key) to biases (batch, heads, rows, key) in fp32; a batch of one, and one head
    where all agree, broadcast. The operation adds them to the scaled scores.
    """

    query: Int[Tensor, "#batch query"]
    key: Int[Tensor, "#batch key"]
    of: Callable[[Tensor], Tensor]

    def rows(self, rows: slice) -> Float[Tensor, "#batch #heads rows key"]:
        """The biases of the queries in `rows` on every key."""
        return self.of(self.query[:, rows, None] - self.key[:, None, :])


@dataclass(frozen=True, eq=False)
class TokenPositions:
    """Positions of the queries of a pass and of all keys they may meet, cached ones among them.

    A token's position is its index among the real tokens of its row, from 0. Sink tokens stand before it at −n … −1, so
    they move no real token, and every relative scheme sees one sequence. With `restart` the count starts anew in
    each document. A caller's `position_ids` replace the queries' positions; they say nothing about
    the keys in a cache, so `own` keeps the positions that the keys' count would have given the queries.
    """

    query: Int[Tensor, "#batch query"]
    key: Int[Tensor, "#batch key"]
    visibility: Visibility
    own: Int[Tensor, "#batch query"] | None = None

    @classmethod
    def of(
        cls, visibility: Visibility, position_ids: object = None, *, sinks: int = 0, restart: bool = False
    ) -> TokenPositions:
        """Positions of the tokens that `visibility` binds, of which the first `sinks` are sink tokens.

        `position_ids` (batch or 1, position): of the other tokens of this pass. Raises `InputError` for another shape.
        """
        tokens, queries = visibility.key, visibility.query.count
        restarts = restart and tokens.document is not None
        key = restarted(tokens, sinks) if restarts else tokens.order - sinks
        query = key[:, tokens.count - queries :]
        if position_ids is None:
            return cls(query, key, visibility)
        if queries == tokens.count:
            given = _after_sinks(position_ids, queries - sinks, sinks)
            return cls(given, given, visibility)
        return cls(_after_sinks(position_ids, queries, 0), key, visibility, own=query)

    def known(self) -> TokenPositions:
        """These positions, for a scheme that needs the keys' positions.

        Raises `InputError` where `position_ids` were given that do not continue those of the cached keys.
        """
        if self.own is not None and not torch.compiler.is_compiling():
            # Cached keys are rotated or biased by positions counted from 0, and the cache keeps keys, not positions.
            # Under a position bias, queries counted otherwise would be at wrong distances from them.
            wrong = self.query != self.own
            if (valid := self.visibility.query.valid) is not None:
                wrong = wrong & valid
            if bool(wrong.any()):
                raise InputError(
                    "position_ids do not continue the positions of the cached keys, which a cache does not store: "
                    "leave position_ids out, or run without a cache"
                )
        return self


def restarted(tokens: Tokens, sinks: int = 0) -> Int[Tensor, "#batch tokens"]:
    """Index of each real token among those of its document, from 0; −n … −1 for the first n = `sinks`.

    Tokens of one document need not be neighbors: a document mask lets them see each other wherever they stand.
    """
    assert tokens.document is not None
    outside = tokens.order < sinks  # sink tokens, and padding on the left
    if tokens.valid is not None:
        outside = outside | ~tokens.valid
    return torch.where(outside, tokens.order - sinks, tokens.within_documents(outside))


def _after_sinks(given: object, count: int, sinks: int) -> Int[Tensor, "#batch query"]:
    """The caller's positions of `count` real tokens, with those of the sink tokens in front."""
    if not isinstance(given, Tensor) or given.ndim != 2 or given.shape[1] != count:
        shape = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
        raise InputError(f"position_ids {shape}: expected (batch or 1, {count}), one for each token of this pass")
    before = torch.arange(-sinks, 0, device=given.device).expand(len(given), -1)
    return torch.cat([before, given.long()], 1)


Rotation = tuple[Tensor, Tensor]  # cos and sin, each (batch, position, rotated channels / 2)


class Scheme(nn.Module):
    """A scheme fills one of three roles: it adds to embeddings, rotates queries and keys, or biases scores.

    This base fills none, which is the scheme `none` (NoPE): only the mask tells positions apart (Gu et al. 2025, Table
    3).
    """

    def embed(
        self, hidden: Float[Tensor, "batch position width"], positions: Int[Tensor, "#batch position"]
    ) -> Float[Tensor, "batch position width"]:
        """The embeddings of real tokens with their positions added; sink tokens have none and stay as they are."""
        return hidden

    def rotation(self, positions: TokenPositions) -> Rotation | None:
        """How queries and new keys turn, in fp32; None where they do not."""
        return None

    def bias(self, positions: TokenPositions) -> DistanceBias | None:
        """What is added to the scores, bound to the tokens at hand; None where nothing is.

        Raises `InputError` where the keys' positions are not known.
        """
        return None
