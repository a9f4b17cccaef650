"""What a choice of tokens is, and a choice whose tokens are known for certain inputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from torch.nn import functional

from sinkscope.errors import InputError
from sinkscope.model.columns import UNKNOWN, Columns, columns_of


class Spared(ABC):
    """A choice of tokens. To write one: a frozen dataclass that extends `Placed` or `Found`."""

    @property
    @abstractmethod
    def of_inputs(self) -> bool:
        """Whether the tokens are found in whole inputs, so that no pass alone tells them: `known` fixes them then."""

    @abstractmethod
    def mask(self, model: nn.Module, inputs: Mapping[str, Any]) -> Bool[Tensor, "batch position"]:
        """Which tokens of `inputs` are spared, in the inputs' own columns; padding never is.

        Columns of inputs that continue a cache are the new ones, and count on from the tokens in it. Where packed
        documents are kept apart, each counts from its own start. Learned tokens that a model puts before its sequences
        have the first columns. Raises `InputError` where the inputs do not tell.
        """

    @abstractmethod
    def among(self, columns: Columns) -> Bool[Tensor, "batch position"]:
        """Which of the columns of a pass are spared. Raises `InputError` where they do not tell (`of_inputs`)."""

    def known(self, model: nn.Module, inputs: Mapping[str, Any]) -> Known:
        """The same choice with its tokens fixed for these inputs, for passes over any of their rows.

        Raises `InputError` as `mask` does, and for inputs that continue a cache.
        """
        columns = columns_of(model, inputs)
        if columns.start:
            raise InputError(
                f"{self}: the inputs continue a cache; choose tokens of whole rows, from their first one on"
            )
        return Known.of(self.mask(model, inputs), columns, self.describe())

    def describe(self) -> dict[str, Any]:
        """The choice as JSON-able data."""
        fields: dict[str, Any] = asdict(self) if is_dataclass(self) and not isinstance(self, type) else {}
        return {"name": type(self).__name__, **fields}


class Placed(Spared):
    """A choice that each pass tells by itself, from where its tokens stand or which they are: write `among`."""

    @property
    def of_inputs(self) -> bool:
        return False

    def mask(self, model: nn.Module, inputs: Mapping[str, Any]) -> Bool[Tensor, "batch position"]:
        columns = columns_of(model, inputs)
        return self.among(columns) & columns.real


class Found(Spared):
    """A choice that needs a look at whole inputs, mostly by running the model in full precision: write `mask`."""

    @property
    def of_inputs(self) -> bool:
        return True

    def among(self, columns: Columns) -> Bool[Tensor, "batch position"]:
        raise InputError(
            f"{type(self).__name__}: its tokens are found in whole inputs, of which a pass may be a part: "
            "give spared.known(model, inputs)"
        )


@dataclass(frozen=True, eq=False)
class Known(Spared):
    """Tokens chosen in certain inputs. Passes over these rows, whole, in parts or through a cache, find theirs.

    `chosen` (row, token): which of a row's real tokens, counted from its first; `text` (row, token): their ids, −1
    behind a row's end, or None, then `given` is what the model was given in their place (row, …), and passes hold whole
    rows. A pass that is not over these rows is refused, and so is one that is over the beginning of several which
    spare different tokens there. What is written behind the end of a known row is not spared.
    """

    chosen: Bool[Tensor, "row token"]
    text: Int[Tensor, "row token"] | None
    given: Tensor | None = None
    found_by: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, mask: Bool[Tensor, "row position"], columns: Columns, found_by: Mapping[str, Any]) -> Known:
        """From a mask over the columns of whole rows."""
        places = torch.argsort((~columns.real).int(), dim=-1, stable=True)
        return cls((mask & columns.real).gather(1, places), columns.text, columns.given, found_by)

    @property
    def of_inputs(self) -> bool:
        return False

    @property
    def count(self) -> Int[Tensor, " row"]:
        """Spared tokens of each row."""
        return self.chosen.sum(-1)

    def rows(self, part: slice) -> Known:
        """The same for some of the rows."""
        text = None if self.text is None else self.text[part]
        return Known(self.chosen[part], text, None if self.given is None else self.given[part], self.found_by)

    def known(self, model: nn.Module, inputs: Mapping[str, Any]) -> Known:
        return self

    def mask(self, model: nn.Module, inputs: Mapping[str, Any]) -> Bool[Tensor, "batch position"]:
        return self.among(columns_of(model, inputs))

    def among(self, columns: Columns) -> Bool[Tensor, "batch position"]:
        if columns.start and columns.text is None:
            raise InputError("the cache was filled before its tokens were followed, so whose they are is not known")
        alike = self._alike(columns)
        if not bool(alike.any(-1).all()):
            row = int((~alike.any(-1)).nonzero()[0])
            raise InputError(
                f"row {row} of this pass is none of the {len(self.chosen)} whose tokens were chosen: choose them in "
                "the inputs that the model is given (spared.known(model, inputs))"
            )
        every = self.chosen.to(columns.index.device)
        index = columns.index.clamp(0, every.shape[1] - 1)
        first = alike.int().argmax(-1)
        found = every[first].gather(1, index) & columns.real & (columns.index < every.shape[1])
        self._check_one(alike, columns, index, found)
        return found

    def describe(self) -> dict[str, Any]:
        return {"name": "Known", "rows": len(self.chosen), "tokens": int(self.count.sum()), "found_by": self.found_by}

    def _alike(self, columns: Columns) -> Bool[Tensor, "batch row"]:
        """Which known rows each row of a pass can be; consecutive ones where the pass can be that."""
        if self.text is None or columns.text is None:
            alike = self._same_given(columns.given)
        else:
            text, mine = columns.text, self.text.to(columns.text.device)
            if text.shape[1] > mine.shape[1]:
                mine = functional.pad(mine, (0, text.shape[1] - mine.shape[1]), value=UNKNOWN)
            mine = mine[None, :, : text.shape[1]]
            length = columns.so_far[:, None, None]
            behind = torch.arange(text.shape[1], device=text.device) >= length
            alike = ((text[:, None] == mine) | behind | (mine == UNKNOWN)).all(-1)
        rows, known = alike.shape
        starts = known - rows + 1
        if starts < 1:
            return alike
        blocks = torch.stack([alike[row, row : row + starts] for row in range(rows)]).all(0)
        if not bool(blocks.any()):
            return alike
        together = torch.zeros_like(alike)
        for start in blocks.nonzero().flatten().tolist():
            together[torch.arange(rows), torch.arange(start, start + rows)] = True
        return together

    def _same_given(self, given: Tensor | None) -> Bool[Tensor, "batch row"]:
        if given is None or self.given is None or given.shape[1:] != self.given.shape[1:]:
            raise InputError("this pass is not over the inputs whose tokens were chosen: they have another form")
        mine = self.given.to(given)
        return torch.stack([(mine == row).flatten(1).all(-1) for row in given])

    def _check_one(self, alike: Tensor, columns: Columns, index: Tensor, found: Tensor) -> None:
        """Raises `InputError` where rows that begin alike spare different tokens, and the pass is but their beginning.

        Of rows that are alike to their ends, the first is as good as any.
        """
        every = self.chosen.to(index.device)
        for row in (alike.sum(-1) > 1).nonzero().flatten().tolist():
            others = alike[row].nonzero().flatten()
            masks = every[others][:, index[row]] & columns.real[row]
            if bool((masks == found[row]).all()):
                continue
            whole = self.text is None or bool((self.text[others.cpu(), int(columns.so_far[row]) :] == UNKNOWN).all())
            if not whole:
                raise InputError(
                    f"rows {', '.join(map(str, others[:4].tolist()))} begin alike and spare different tokens there, so "
                    f"which of them row {row} of this pass will be is not known: give known.rows(...) of one of them"
                )
