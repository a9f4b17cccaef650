"""Inputs of a tiny model by the names of its forward pass: whole, padded, or one row alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

Padding = Literal["none", "right", "left"]
WORDS = ("input_ids", "decoder_input_ids", "qformer_input_ids")
ROWS, LENGTH, TARGET, SHORTER = 2, 24, 19, 7


@dataclass(frozen=True, eq=False)
class Part:
    """One input: `values` along `axis`, of which the last row has `short` fewer; `mask`: the name of its mask."""

    name: str
    values: Tensor
    axis: int = 1
    mask: str | None = None
    short: int = 0
    fill: float = 0.0
    always: bool = False

    @property
    def words(self) -> bool:
        """Whether padding may stand before it: sounds and patches are only padded behind."""
        return "attention_mask" in str(self.mask) and self.name not in (
            "input_values",
            "input_features",
            "flattened_patches",
        )

    def whole(self) -> dict[str, Tensor]:
        return {self.name: self.values} | self._all_real(self.values)

    def _all_real(self, values: Tensor) -> dict[str, Tensor]:
        """A mask that hides nothing, for models that want one."""
        return (
            {str(self.mask): torch.ones(len(values), values.shape[self.axis], dtype=torch.long)} if self.always else {}
        )

    def padded(self, side: Padding) -> dict[str, Tensor]:
        if self.mask is None:
            return self.whole()
        side = side if self.words else "right"
        length = self.values.shape[self.axis]
        real = torch.ones(ROWS, length, dtype=torch.long)
        hidden = slice(length - self.short, length) if side == "right" else slice(0, self.short)
        real[-1, hidden] = 0
        values = self.values.clone()
        last = values[-1].movedim(self.axis - 1, 0)
        kept = last[: length - self.short].clone()
        last[slice(0, length - self.short) if side == "right" else slice(self.short, length)] = kept
        last[hidden] = self.fill
        return {self.name: values, self.mask: real}

    def alone(self, row: int) -> dict[str, Tensor]:
        each = len(self.values) // ROWS
        values = self.values[row * each : (row + 1) * each]
        if self.mask is not None and row == ROWS - 1:
            values = values.narrow(self.axis, 0, values.shape[self.axis] - self.short)
        return {self.name: values} | self._all_real(values)


@dataclass(frozen=True, eq=False)
class Given:
    """All inputs of a model. `extra`: what is the same however rows are padded, one entry per row."""

    parts: tuple[Part, ...]
    extra: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    fixed: bool = False  # the model takes no rows of different lengths

    def whole(self) -> dict[str, Any]:
        return self._joined(lambda part: part.whole())

    def padded(self, side: Padding) -> dict[str, Any]:
        return self.whole() if side == "none" else self._joined(lambda part: part.padded(side))

    def alone(self, row: int) -> dict[str, Any]:
        own = {
            name: value[row * (len(value) // ROWS) : (row + 1) * (len(value) // ROWS)]
            if isinstance(value, Tensor) and value.ndim
            else value
            for name, value in self.extra.items()
        }
        return own | {name: value for part in self.parts for name, value in part.alone(row).items()}

    def real(self, padding: Padding) -> dict[int, Tensor]:
        """Real words of each row, by how long the texts are."""
        batch = self.padded(padding)
        words = [part for part in self.parts if part.name in WORDS]
        whole = {part.values.shape[1]: torch.ones(part.values.shape[:2], dtype=torch.bool) for part in words}
        if padding == "none":
            return whole
        return whole | {part.values.shape[1]: batch[part.mask].bool() for part in words if part.mask}

    @property
    def paddings(self) -> tuple[Padding, ...]:
        """In which ways rows of different lengths can be brought to one."""
        if self.fixed or not any(part.mask and part.short for part in self.parts):
            return ("none",)
        return ("none", "right", "left") if any(part.words for part in self.parts) else ("none", "right")

    def _joined(self, use: Callable[[Part], dict[str, Tensor]]) -> dict[str, Any]:
        return dict(self.extra) | {name: value for part in self.parts for name, value in use(part).items()}


class Masked(Part):
    """Images of which the last is lower than the rest, with a mask over pixels."""

    def __init__(self, name: str, values: Tensor, mask: str, patch: int) -> None:
        super().__init__(name, values, 2, mask, 2 * patch)

    def padded(self, side: Padding) -> dict[str, Tensor]:
        real = torch.ones(ROWS, *self.values.shape[2:], dtype=torch.long)
        real[-1, -self.short :] = 0
        values = self.values.clone()
        values[-1, :, -self.short :] = 0.0
        return {self.name: values, str(self.mask): real}


class Shaped(Part):
    """Images as rows of patches, the last with fewer, with a mask over patches and their shapes (SigLIP 2)."""

    def __init__(self, values: Tensor, tall: tuple[int, int], low: tuple[int, int]) -> None:
        super().__init__("pixel_values", values, 1, "pixel_attention_mask", tall[0] * tall[1] - low[0] * low[1])
        object.__setattr__(self, "shapes", (tall, low))

    def whole(self) -> dict[str, Tensor]:
        real = torch.ones(self.values.shape[:2], dtype=torch.long)
        return {self.name: self.values, str(self.mask): real, "spatial_shapes": torch.tensor([self.shapes[0]] * ROWS)}  # type: ignore[attr-defined]

    def padded(self, side: Padding) -> dict[str, Tensor]:
        return super().padded("right") | {"spatial_shapes": torch.tensor(self.shapes)}  # type: ignore[attr-defined]

    def alone(self, row: int) -> dict[str, Tensor]:
        found = super().alone(row)
        real = torch.ones(found[self.name].shape[:2], dtype=torch.long)
        return found | {str(self.mask): real, "spatial_shapes": torch.tensor(self.shapes[row : row + 1])}  # type: ignore[attr-defined]
