"""The tokens in the columns of a pass, with padding, caches, documents and learned tokens accounted for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from torch.nn import functional

from sinkscope.attention import TokenAxis
from sinkscope.errors import InputError
from sinkscope.hooks import Forward, Stream, arguments, documents_of, row_length, unobserved, unwrapped

UNKNOWN = -1  # in place of an id: padding, and learned tokens before a sequence


@dataclass(frozen=True, eq=False)
class TokenColumns:
    """The columns of the changed stack, learned tokens before a sequence among them.

    `index`: the column's number among its row's real tokens, counted from 0 including the cache; `order`: its number
    within its document if the inputs separate packed documents, else the same; `document`: the number of its document;
    `real`: False for padding; `start`: columns before them, in a cache. `ids`: token ids of these columns, −1 for
    learned tokens; `text`: ids of all of a row's real tokens so far, then −1. Both are None if unknown.
    """

    index: Int[Tensor, "batch position"]
    order: Int[Tensor, "batch position"]
    document: Int[Tensor, "batch position"]
    real: Bool[Tensor, "batch position"]
    start: int = 0
    ids: Int[Tensor, "batch position"] | None = None
    text: Int[Tensor, "batch token"] | None = None

    def part(self, columns: slice) -> TokenColumns:
        """Some of the columns; what is known of the whole row stays."""
        names = ("index", "order", "document", "real")
        cut = {name: getattr(self, name)[:, columns] for name in names}
        start = self.start + columns.indices(self.index.shape[1])[0]
        return replace(self, **cut, start=start, ids=None if self.ids is None else self.ids[:, columns])

    @property
    def so_far(self) -> Int[Tensor, " batch"]:
        """Real tokens of each row up to the last of these columns."""
        return self.index[:, -1] + 1

    @property
    def documents(self) -> list[tuple[int, Bool[Tensor, " position"]]]:
        """Each document of each row: the row, and its real columns."""
        documents = []
        for row, (numbers, real) in enumerate(zip(self.document, self.real, strict=True)):
            documents += [(row, (numbers == number) & real) for number in numbers[real].unique().tolist()]
        return documents


def columns_of(model: nn.Module, inputs: Mapping[str, Any]) -> TokenColumns:
    """The columns of `inputs`, counted from the start of a continued cache.

    Documents are separate where transformers separates them (restarting position ids, without a mask or a cache), and
    in lab models whose mask does (`document_ids`). Raises `InputError` if the inputs do not determine their columns.
    """
    model = unwrapped(model)
    forward = Forward.of(model, (), inputs)
    return own_columns(every_column(model, forward, inputs), forward)


def own_columns(columns: TokenColumns, forward: Forward) -> TokenColumns:
    """Those of all columns so far that belong to the pass itself."""
    ids = _own_ids(forward)
    columns = columns.part(slice(forward.seen, None))
    return replace(columns, ids=ids if ids is not None and ids.shape == columns.index.shape else None)


def every_column(
    model: nn.Module, forward: Forward, inputs: Mapping[str, Any], earlier: Int[Tensor, "batch seen"] | None = None
) -> TokenColumns:
    """All columns so far, those of the cache first, of which `earlier` are the ids where they are known."""
    axis = Stream.of(model).axis
    total = forward.lengths[axis] if axis in forward.lengths else _length(model, forward, inputs)
    main = next(value for value in inputs.values() if isinstance(value, Tensor))
    tokens = forward.tokens(axis, 0, total, main.device)
    index = tokens.order.expand(forward.batch, -1)
    real = torch.ones_like(index, dtype=torch.bool) if tokens.valid is None else tokens.valid.expand_as(index)
    ids, order = _every_id(forward, total, earlier), index
    document = documents_of(model, forward, arguments(model, (), inputs), total)
    if document is not None:
        # Every document of a row follows the same learned tokens, so its count continues from theirs.
        learned = (torch.arange(total, device=index.device) < forward.prefix).expand_as(index)
        within = TokenAxis(index, document.expand_as(index), real).within_documents(apart=learned)
        order = torch.where(learned, index, within + forward.prefix)
    document = torch.zeros_like(index) if document is None else document.expand_as(index)
    return TokenColumns(index, order, document, real, 0, ids, _front(ids, real))


def _front(ids: Tensor | None, real: Bool[Tensor, "batch position"]) -> Int[Tensor, "batch position"] | None:
    """Ids of whole rows, real tokens moved to the front, followed by −1."""
    if ids is None:
        return None
    # Real tokens sort as 0, padding as 1; stable, so that real tokens keep their order.
    moved = ids.gather(1, torch.argsort((~real).int(), dim=-1, stable=True))
    return moved.masked_fill(torch.arange(moved.shape[1], device=moved.device) >= real.sum(-1, keepdim=True), UNKNOWN)


def _own_ids(forward: Forward) -> Int[Tensor, "batch position"] | None:
    """Ids of a pass, with −1 for the learned tokens before its sequence."""
    if forward.ids is None:
        return None
    # Learned tokens come with the first pass only; later they are in the cache.
    return functional.pad(forward.ids, (0 if forward.seen else forward.prefix, 0), value=UNKNOWN)


def _every_id(forward: Forward, total: int, earlier: Tensor | None) -> Int[Tensor, "batch position"] | None:
    ids = _own_ids(forward)
    if ids is not None and forward.seen and earlier is not None:
        ids = torch.cat([earlier.to(ids.device), ids], 1)
    return ids if ids is not None and ids.shape[1] == total else None


def _length(model: nn.Module, forward: Forward, inputs: Mapping[str, Any]) -> int:
    """Columns of inputs other than text, such as images, from a pass over the first sample without hooks."""
    if forward.text_alone:
        needed = Stream.of(model).mask_name.replace("attention_mask", "input_ids")
        raise InputError(f"the inputs have no {needed}, so which tokens are protected is unknown: give them")
    return row_length(unobserved(model), inputs)
