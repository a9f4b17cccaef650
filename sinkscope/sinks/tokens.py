"""Chosen tokens, by text, layer and head, and matched random ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Int

from sinkscope.errors import InputError
from sinkscope.sinks.rule import counted

LISTED = 64  # positions that a description names


@dataclass(frozen=True, eq=False)
class Rows:
    """The real tokens of some texts, padding left out.

    `order` (row, token): the position of a row's t-th real token within its document, −1 after the row's end;
    `document`: the number of that document; `ids`: token ids, −1 for tokens without an id (learned tokens, embeddings),
    or None if none is known.
    """

    order: Int[np.ndarray, "row token"]
    document: Int[np.ndarray, "row token"]
    ids: Int[np.ndarray, "row token"] | None = None

    @classmethod
    def plain(cls, lengths: Any, ids: Any = None) -> Rows:
        """Rows of one document each, with these lengths."""
        count = np.asarray(lengths, dtype=np.int64)
        index = np.arange(int(count.max(initial=0)))[None]
        order = np.where(index < count[:, None], index, -1)
        return cls(order, np.zeros_like(order), None if ids is None else np.asarray(ids, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.order)

    @property
    def real(self) -> Bool[np.ndarray, "row token"]:
        """False after a row's end."""
        return self.order >= 0

    @property
    def visible(self) -> Int[np.ndarray, "row token"]:
        """How many queries of its document see a token in a causal stack; 0 after a row's end."""
        lengths = np.zeros_like(self.order)
        for number in np.unique(self.document):
            in_document = (self.document == number) & self.real
            lengths = np.where(in_document, in_document.sum(-1, keepdims=True), lengths)
        # In a document of n tokens, position p is seen by itself and all later ones: n − p.
        return np.where(self.real, lengths - self.order, 0)

    @property
    def counted(self) -> Bool[np.ndarray, "row token"]:
        """Whether enough queries of its document see a token for it to be a sink (`rule.counted`)."""
        seen, mask = self.visible.astype(float), np.zeros(self.order.shape, dtype=bool)
        for number in np.unique(self.document):
            in_document = (self.document == number) & self.real
            mask |= counted(np.where(in_document, seen, 0.0)) & in_document
        return mask

    def part(self, rows: slice) -> Rows:
        """Some of the rows."""
        return Rows(self.order[rows], self.document[rows], None if self.ids is None else self.ids[rows])


@dataclass(frozen=True, eq=False)
class Tokens:
    """Chosen tokens.

    `mask` (row, layer, head, token): an axis of length 1 for layers or heads applies to all of them. With `rows`, the
    last axis counts the real tokens of these texts. Without, the mask has one row that applies to any text, and its
    last axis is the position within a document. `layers`: the model's own number of each layer; `chosen_by`: the words
    of the choice; `slots`: True where heads attend to learned slots, which are not tokens.
    """

    mask: Bool[np.ndarray, "row layer head token"]
    rows: Rows | None = None
    layers: tuple[int, ...] = ()
    chosen_by: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        places = ", ".join(map(str, self.positions[:8])) + (", …" if len(self.positions) > 8 else "")
        heads = f"{int(self.mask.any((0, 3)).sum())} of {self.mask.shape[1] * self.mask.shape[2]} heads"
        where = "for any text" if self.rows is None else f"in {len(self.rows)} texts"
        return f"Tokens({self.chosen_by or 'chosen'}: positions {places or 'none'}, {heads}, {where})"

    @property
    def positions(self) -> tuple[int, ...]:
        """Positions within documents at which some text has a chosen token."""
        where = self.any_head()
        if self.rows is None:
            return tuple(np.flatnonzero(where[0]).tolist())
        return tuple(np.unique(self.rows.order[where & self.rows.real]).tolist())

    def any_head(self) -> Bool[np.ndarray, "row token"]:
        """Tokens that any layer and head chooses."""
        return np.asarray(self.mask.any((1, 2)))

    def columns(self, attention_mask: Any) -> Bool[np.ndarray, "row column"]:
        """The same over the columns of padded inputs, left or right; padding is False.

        `attention_mask`: (row, column), numpy or torch, true for real tokens. Raises `InputError` if the texts have
        other numbers of real tokens.
        """
        real = np.asarray(attention_mask).astype(bool)
        known = self.on(Rows.plain(real.sum(-1))) if self.rows is None else self
        assert known.rows is not None
        if len(known.rows) != len(real) or (known.rows.real.sum(-1) != real.sum(-1)).any():
            raise InputError("these tokens were chosen in texts with other numbers of real tokens than the mask has")
        mask = np.zeros_like(real)
        # Both masks list real tokens row by row; they match, since each row has equally many.
        mask[real] = known.any_head()[known.rows.real]
        return mask

    def kv(self, group: int) -> Tokens:
        """The same for key-value heads, each of which serves `group` query heads: a token counts if any head of the
        group has it. Raises `InputError` if the heads are not a multiple of the group.
        """
        heads = self.mask.shape[2]
        if heads == 1 or group == 1:
            return self
        if heads % group:
            raise InputError(f"{heads} heads do not form groups of {group}: the tokens are of another model")
        # (row, layer, kv_heads, group, token): the query heads of a group are consecutive.
        grouped = self.mask.reshape(*self.mask.shape[:2], heads // group, group, -1).any(3)
        return replace(self, mask=np.asarray(grouped))

    def layer(self, index: int) -> Bool[np.ndarray, "row head token"]:
        """The tokens of a layer, by the model's own number. Raises `InputError` for an unknown layer."""
        if self.mask.shape[1] == 1:
            return self.mask[:, 0]
        if index not in self.layers:
            known = ", ".join(map(str, self.layers))
            raise InputError(f"layer {index}: tokens were chosen in layers {known} alone; measure all of them")
        return self.mask[:, self.layers.index(index)]

    def on(self, rows: Rows) -> Tokens:
        """The same for these texts. Raises `InputError` if the tokens belong to other texts."""
        if self.rows is not None:
            # The same texts may be padded to another width.
            more = rows.order.shape[1] - self.rows.order.shape[1]
            ours, theirs = _wider(self.rows.order, more, -1), _wider(rows.order, -more, -1)
            if not np.array_equal(ours, theirs):
                raise InputError("these tokens were chosen in other texts: choose them in the ones that are used")
            if not more:
                return self
            return replace(self, mask=_wider(self.mask, more, False)[..., : rows.order.shape[1]], rows=rows)
        width = self.mask.shape[-1]
        inside = (rows.order >= 0) & (rows.order < width)
        # Column 0 stands in for tokens beyond the mask, which `inside` then clears.
        place = np.where(inside, rows.order, 0)
        wide: np.ndarray = np.take_along_axis(
            np.broadcast_to(self.mask, (len(rows), *self.mask.shape[1:])),
            np.broadcast_to(place[:, None, None], (len(rows), *self.mask.shape[1:3], place.shape[1])),
            -1,
        )
        return replace(self, mask=np.asarray(np.logical_and(wide, inside[:, None, None]), dtype=bool), rows=rows)

    def part(self, rows: slice) -> Tokens:
        """The same for some of the texts."""
        if self.rows is None:
            return self
        return replace(self, mask=self.mask[rows], rows=self.rows.part(rows))

    def count(self) -> float:
        """The mean number of chosen tokens per text, over any layer and head."""
        return float(self.any_head().sum(-1).mean()) if len(self.mask) else 0.0

    def __or__(self, other: Tokens) -> Tokens:
        """The union. Raises `InputError` if texts or layers differ."""
        first, second = self, other
        if self.rows is not None and other.rows is None:
            second = other.on(self.rows)
        elif other.rows is not None:
            first = self.on(other.rows)
        layers = first.layers or second.layers
        if first.layers and second.layers and first.layers != second.layers:
            raise InputError("tokens of different layers cannot be added: they are of different models")
        more = second.mask.shape[-1] - first.mask.shape[-1]
        mask = _wider(first.mask, more, False) | _wider(second.mask, -more, False)
        words = "+".join(dict.fromkeys(word for word in (first.chosen_by, second.chosen_by) if word))
        return Tokens(mask, first.rows, layers, words, {**first.about, **second.about})

    def random(
        self, rng: np.random.Generator, rows: Rows | None = None, free: Bool[np.ndarray, "row token"] | None = None
    ) -> Tokens:
        """The matched control: each chosen token is exchanged for another of its text, in all its layers and heads.

        So the control has as many tokens as the choice in every row, layer and head, and as many distinct ones per row.
        New tokens are not chosen ones, have an id if ids are known, are in `free` (default: all), and are seen by
        enough queries to be sinks if the exchanged one is. Each text draws independently.

        Args:
            rng: Random generator; draws text by text. rows: The texts, for tokens that apply to any text. free: Tokens
            that may be drawn; leave out what the arm keeps anyway (newest tokens, a policy's own sinks).

        Raises `InputError` if nothing is chosen, or a text has too few other tokens.
        """
        if self.rows is None and rows is None:
            raise InputError("random tokens are drawn in texts: give rows, the texts in which to draw")
        known = self if rows is None else self.on(rows)
        texts = known.rows
        assert texts is not None
        taken = known.any_head() & texts.real
        if not taken.any():
            raise InputError(f"'{self.chosen_by or 'the choice'}' chooses no token of these texts: there is no control")
        open_to = texts.real & ~taken
        if texts.ids is not None and bool((texts.ids >= 0).any()):
            open_to &= texts.ids >= 0
        if free is not None:
            open_to &= free
        classes = texts.counted
        mask = np.zeros_like(known.mask)
        for row in range(len(texts)):
            for kind in (True, False):
                old = np.flatnonzero(taken[row] & (classes[row] == kind))
                others = np.flatnonzero(open_to[row] & (classes[row] == kind))
                if len(others) < len(old):
                    raise InputError(
                        f"no control: text {row} has {len(old)} chosen tokens and {len(others)} others that "
                        f"{'enough' if kind else 'few'} queries see; choose fewer, or give longer texts"
                    )
                new = rng.permutation(others)[: len(old)]
                # A token moves with its layers and heads, so each head keeps its number; `mask[row]` is a view.
                mask[row][..., new] = known.mask[row][..., old]
        return replace(known, mask=mask, chosen_by=f"random, as many as {self.chosen_by or 'chosen'}")

    def table(self) -> pd.DataFrame:
        """One row per chosen layer, head and position: `layer, head, position, texts` (share of texts).

        `layer` and `head` are −1 if the choice applies to all.
        """
        table = []
        texts = len(self.mask)
        for layer in range(self.mask.shape[1]):
            for head in range(self.mask.shape[2]):
                mask = self.mask[:, layer, head]
                if self.rows is None:
                    shares = dict.fromkeys(np.flatnonzero(mask[0]).tolist(), 1.0)
                else:
                    orders = self.rows.order[mask & self.rows.real]
                    places, counts = np.unique(orders, return_counts=True)
                    shares = dict(zip(places.tolist(), (counts / texts).tolist(), strict=True))
                number = self.layers[layer] if self.mask.shape[1] > 1 and self.layers else layer
                table += [
                    {
                        "layer": number if self.mask.shape[1] > 1 else -1,
                        "head": head if self.mask.shape[2] > 1 else -1,
                        "position": place,
                        "texts": share,
                    }
                    for place, share in shares.items()
                ]
        return pd.DataFrame(table, columns=["layer", "head", "position", "texts"])

    def describe(self) -> dict[str, Any]:
        """The choice as JSON-able data: its words, tokens per text, positions, and its source."""
        positions = list(self.positions)
        return {
            "chosen_by": self.chosen_by,
            "tokens_per_text": round(self.count(), 3),
            "positions": positions if len(positions) <= LISTED else [*positions[:LISTED], "…"],
            **self.about,
        }


def _wider(values: np.ndarray, columns: int, fill: Any) -> np.ndarray:
    """With more columns behind; unchanged for a negative number."""
    return np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, max(0, columns))], constant_values=fill)
