"""Interventions on absolute positions (Gu et al. 2025, Table 7)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import OpenStream, PositionTable, family, position_embedding
from sinkscope.interventions.intervention import Intervention, whole
from sinkscope.interventions.residual import other_positions


@dataclass(frozen=True)
class SwapPositions(Intervention):
    """P_a ↔ P_b: the tokens at `a` and `b` exchange their position embeddings.

    If the sink follows the embedding, position embeddings make it (Gu et al. 2025, Table 7). What is exchanged is the
    output of the table at these two tokens, whichever of its rows that were: a model that counts columns gives the
    tokens of a padded row other rows. A token whose partner is in another pass (cached decoding) gets the embedding as
    far from its own as the partner is from it. Learned tokens before a sequence have no embedding and do not count. A
    table that is a parameter (image models) has its rows changed, and counts special tokens. Control: two other
    positions. Raises `InputError` for positions outside the table, and `UnsupportedModelError` for models without one,
    such as those with rotary positions.
    """

    a: int
    b: int

    def __post_init__(self) -> None:
        whole("positions", (self.a, self.b))

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        _give(model, {self.a: self.b, self.b: self.a}, stack)

    def control(self, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> SwapPositions:
        return SwapPositions(*_others(generator, model, inputs, self.positions_named))

    @property
    def positions_named(self) -> tuple[int, ...]:
        return self.a, self.b


@dataclass(frozen=True)
class ReplacePosition(Intervention):
    """P_position = P_by: the token at `position` gets the embedding of `by`, which keeps its own.

    `by` may be a position that no row has. Otherwise as `SwapPositions`. Control: another position replaced by a third.
    Source: Gu et al. 2025, Table 7.
    """

    position: int
    by: int

    def __post_init__(self) -> None:
        whole("positions", (self.position, self.by))

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        _give(model, {self.position: self.by}, stack)

    def control(self, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> ReplacePosition:
        return ReplacePosition(*_others(generator, model, inputs, (self.position, self.by)))

    @property
    def positions_named(self) -> tuple[int, ...]:
        return (self.position,)


def _others(
    generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any], taken: tuple[int, ...]
) -> tuple[int, ...]:
    return other_positions(generator, model, inputs, taken, stop=len(position_embedding(model).rows))


def _give(model: nn.Module, gets: Mapping[int, int], stack: ExitStack) -> None:
    """Give the token at each position the embedding of another, until `stack` closes."""
    table = position_embedding(model)
    rows = table.rows
    if (missing := max((*gets, *gets.values()))) >= len(rows):
        raise InputError(f"position {missing} has no embedding: the table holds positions 0 to {len(rows) - 1}")
    module = dict(model.named_modules()).get(table.path)
    if module is None:
        # The table is a parameter without a module (image models): its rows are changed, and copied back at the end.
        before = rows.clone()
        stack.callback(rows.copy_, before)
        rows[list(gets)] = before[list(gets.values())]
        return
    opened = OpenStream(model, stack)
    # Prepended, so that observers of the table see the exchanged embeddings.
    stack.callback(module.register_forward_hook(_ExchangedRows(opened, table, gets), prepend=True).remove)
    opened.passes.require(
        lambda done: module in done.noted,
        f"family '{family(model)}': its position table '{table.path}' was not called in this pass (its weight is read "
        "directly), so no embedding was changed",
        stack,
    )


@dataclass(frozen=True, eq=False)
class _ExchangedRows:
    """The output of a table with other rows for some tokens. `gets`: the position whose embedding a position gets."""

    opened: OpenStream
    table: PositionTable
    gets: Mapping[int, int]

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        self.opened.edited(module)
        # A table that is called on (position,) gives all texts the same rows.
        rows = output if output.ndim == 3 else output[None]
        at = {position: self._columns(position, rows) for position in dict.fromkeys((*self.gets, *self.gets.values()))}
        batch = max(len(rows), *(len(chosen) for chosen in at.values()))
        rows = rows.expand(batch, -1, -1)
        # Read from `rows`, written to `edited`: in a swap, each side gets what the other had before.
        edited = rows.clone()
        for position, of in self.gets.items():
            for row, column in at[position].expand(batch, -1).nonzero().tolist():
                partner = at[of].expand(batch, -1)[row].nonzero().flatten().tolist()
                embedding = rows[row, column]
                edited[row, column] = rows[row, partner[0]] if partner else self._apart(embedding, of - position)
        # Padded texts may differ now; their batch axis broadcasts over the token embeddings.
        return edited if output.ndim == 3 or batch > 1 else edited[0]

    def _columns(self, position: int, rows: Float[Tensor, "_ position width"]) -> Bool[Tensor, "_ position"]:
        """The columns of a position in the output of the table, which omits learned tokens before a sequence."""
        forward = self.opened.passes.now.forward
        before = forward.prefix if forward.seen == 0 else 0
        # `at` counts columns of the stream, which begins with the learned tokens; only the shape of `whole` is read.
        whole = rows.new_empty(1, rows.shape[1] + before, 0)
        return self.opened.at((position + forward.prefix,), whole)[:, before:]

    def _apart(self, embedding: Float[Tensor, "width"], distance: int) -> Float[Tensor, "width"]:
        """The row of the table `distance` after the one that is `embedding`."""
        rows = self.table.rows
        # By value: the index that the model looked up is not known here, and need not be the position.
        matches = (rows == embedding.to(rows)).all(-1).nonzero().flatten().tolist()
        if len(matches) != 1:
            raise UnsupportedModelError(
                f"family '{family(self.opened.passes.model)}': a token's output of the position table "
                f"'{self.table.path}' equals {len(matches)} of its rows, so the row {distance:+d} from it is unknown"
            )
        if not 0 <= matches[0] + distance < len(rows):
            raise InputError(
                f"position {matches[0] + distance} has no embedding: the table holds positions 0 to {len(rows) - 1}, "
                f"and this row's token has position {matches[0]}"
            )
        return rows[matches[0] + distance].to(embedding)
