"""Interventions on the tokens that a model reads: rearranged, or one more."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sinkscope.errors import InputError, unknown
from sinkscope.hooks import OpenStream, Stream, arguments, given_cache, row_length
from sinkscope.hooks.inputs import check_positions
from sinkscope.interventions.intervention import Intervention, draw, whole
from sinkscope.interventions.residual import Entry, check_dim, entries_of

How = Literal["copy", "move", "swap"]
HOW = ("copy", "move", "swap")


@dataclass(frozen=True)
class Rearrange(Intervention):
    """Ids x of each row in another arrangement; positions stay, so that a token can be told from its place.

    `copy`: x_to ← x_source. `swap`: x_to ↔ x_source. `move`: x_source is taken out and put in at `to`; the ids between
    shift by one. After `to` (and `source`) all ids are as before. Control: another source between the two, or, where
    there is none, after `to`. Raises `InputError` for padded rows, inputs without ids, and inputs with a label per
    token, which would score other tokens than the model reads.
    """

    how: How
    source: int
    to: int

    def __post_init__(self) -> None:
        if self.how not in HOW:
            raise unknown("arrangement", self.how, HOW)
        whole("positions", (self.source, self.to))

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        name = _ids_name(model)

        def before(
            module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> tuple[tuple[()], dict[str, Any]]:
            inputs = _whole_rows(model, module, args, kwargs, max(self.source, self.to))
            order = torch.arange(inputs[name].shape[1])
            if self.how == "move":
                kept = order[order != self.source]
                order = torch.cat([kept[: self.to], order[self.source : self.source + 1], kept[self.to :]])
            else:
                if self.how == "swap":
                    order[self.source] = self.to
                order[self.to] = self.source
            return (), {**inputs, name: inputs[name][:, order.to(inputs[name].device)]}

        # Before all other hooks, so that passes and observers read the rearranged ids.
        stack.callback(model.register_forward_pre_hook(before, with_kwargs=True, prepend=True).remove)

    def control(self, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> Rearrange:
        low, high = sorted((self.source, self.to))
        others = list(range(low + 1, high)) or list(range(high + 1, row_length(model, inputs)))
        (source,) = draw(generator, others, 1, "tokens")
        return replace(self, source=source)

    @property
    def positions_named(self) -> tuple[int, ...]:
        return self.source, self.to


@dataclass(frozen=True)
class ExtraToken(Intervention):
    """One more token at position `at` of every row, whose embedding is zero: a register at test time.

    With `entries` (depth, source, dim) it takes over what another token has above a base b, one number of `base` per
    entry, such as the median over tokens: h^(depth)[at, dim] += h^(depth)[source, dim] − b, and then
    h^(depth)[source, dim] ← b. `source` is counted without the extra token. Later tokens have their positions shifted
    by one. Logits are those of the row's own tokens. Control: the extra token elsewhere.

    Source: Jiang et al. 2025 (2506.08010), where what outlier neurons write is shifted to an extra zero token of an
    image model (read: the abstract, and the notes of its code); moving entries of the residual stream, in a text, is
    ours.
    Raises `InputError` for padded rows, a source or dimension that does not exist, inputs without ids, and inputs with
    `position_ids` or a label per token.
    """

    at: int
    entries: tuple[Entry, ...] = ()
    base: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        whole("at", (self.at,))
        if self.entries:
            object.__setattr__(self, "entries", entries_of(self.entries))
        if (anywhere := next((entry for entry in self.entries if entry[1] is None), None)) is not None:
            raise InputError(f"entry {anywhere!r}: name the token from which it is taken")
        if len(self.entries) != len(self.base):
            raise InputError(f"{len(self.base)} numbers of base for {len(self.entries)} entries: one for each")

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        opened, name = OpenStream(model, stack), _ids_name(model)

        def before(
            module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> tuple[tuple[()], dict[str, Any]]:
            inputs = _whole_rows(model, module, args, kwargs, max(self.at - 1, 0, *self.positions_named))
            shape = inputs[name].shape
            for key, value in inputs.items():
                per_token = isinstance(value, Tensor) and value.ndim > 1 and value.shape[-1] == shape[1]
                if per_token and key.endswith("position_ids"):
                    raise InputError(
                        f"{key}: one for each of the row's own tokens, and the model reads one more: leave them out "
                        "(positions are counted)"
                    )
            column = min(self.at, shape[1] - 1)  # its id is not used, but a mask and token types are
            longer = {
                key: torch.cat([value[:, : self.at], value[:, column : column + 1], value[:, self.at :]], 1)
                for key, value in inputs.items()
                if isinstance(value, Tensor) and value.shape == shape
            }
            check_positions(model, longer)
            return (), {**inputs, **longer}

        def after(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            if isinstance(getattr(output, "logits", None), Tensor) and output.logits.ndim == 3:
                output.logits = torch.cat([output.logits[:, : self.at], output.logits[:, self.at + 1 :]], 1)
            return output

        # Before the hooks of `opened`, whose passes then count the extra token.
        stack.callback(model.register_forward_pre_hook(before, with_kwargs=True, prepend=True).remove)
        stack.callback(model.register_forward_hook(after).remove)
        # At depth 0 rather than in the embedding table: a position embedding is zeroed with it.
        opened.edit(0, lambda hidden: torch.where(opened.at((self.at,), hidden)[..., None], 0.0, hidden))
        for depth in dict.fromkeys(depth for depth, _, _ in self.entries):
            opened.edit(depth, self._moving(opened, depth))

    def _moving(self, opened: OpenStream, depth: int) -> Any:
        def move(hidden: Tensor) -> Tensor:
            hidden = hidden.clone()
            register = opened.at((self.at,), hidden).expand(hidden.shape[:2])
            for (at, source, dim), value in zip(self.entries, self.base, strict=True):
                if at == depth:
                    assert source is not None
                    check_dim(dim, hidden)
                    giver = opened.at((source + (source >= self.at),), hidden).expand(hidden.shape[:2])
                    # One of each per row, so both masks list rows in the same order; `hidden[..., dim]` is a view.
                    hidden[..., dim][register] += hidden[..., dim][giver] - value
                    hidden[..., dim][giver] = value
            return hidden

        return move

    def control(self, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> ExtraToken:
        (at,) = draw(generator, [at for at in range(1, row_length(model, inputs)) if at != self.at], 1, "places")
        return replace(self, at=at)

    @property
    def positions_named(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(source for _, source, _ in self.entries if source is not None))


def _ids_name(model: nn.Module) -> str:
    return Stream.of(model).mask_name.replace("attention_mask", "input_ids")


def _whole_rows(
    model: nn.Module, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], last: int
) -> dict[str, Any]:
    """The pass's inputs by name, if they are rows of ids without padding that have position `last`, and no labels."""
    inputs = arguments(module, args, kwargs)
    stream = Stream.of(model)
    ids, mask = inputs.get(_ids_name(model)), inputs.get(stream.mask_name)
    if not isinstance(ids, Tensor):
        raise InputError(f"family '{stream.family}': this pass has no {_ids_name(model)} that could be changed")
    if isinstance(mask, Tensor) and not bool(mask.bool().all()):
        raise InputError("rows are padded: give rows of one length, whose tokens can be rearranged")
    cache = given_cache(inputs)
    if cache is not None and cache.get_seq_length():
        raise InputError("this pass continues a cache: tokens are rearranged in whole texts only")
    if last >= ids.shape[1]:
        raise InputError(f"position {last} is in no row: rows have positions 0 to {ids.shape[1] - 1}")
    for key, value in inputs.items():
        if key.endswith("labels") and isinstance(value, Tensor) and value.shape == ids.shape:
            raise InputError(
                f"{key}: one for each of the row's own tokens, and the model reads others: leave them out (a loss can "
                "be computed from the logits)"
            )
    return inputs
