"""Closed blocks of tokens: their stored codes and ranges."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from sinkscope.grids import Grid, Steps, encode, pack, stored_steps, unpack

ROOM = 32  # storage grows by one spare block per so many blocks


class Closed:
    """Keys or values of closed blocks: (batch, heads, block, …) of packed codes, steps and lower ends.

    A grid of 16 bits stores the numbers themselves. Blocks are written once.
    """

    def __init__(self, grid: Grid, block: int) -> None:
        self.grid, self.block = grid, block
        self.parts: dict[str, Tensor] = {}
        self._width = 0

    def write(
        self,
        x: Float[Tensor, "n heads block dim"],
        protected: Bool[Tensor, "n 1 block 1"] | None,
        rows: Int[Tensor, " n"],
        blocks: Int[Tensor, " n"],
        batch: int,
    ) -> None:
        """Close blocks, each given by its row and its number; the blocks of a row close in order."""
        self._width = x.shape[-1]
        new = {"plain": x} if self.grid.exact else self._encoded(x.float(), protected)
        self._make_room(int(blocks.max()) + 1, batch, new)
        for name, tensor in new.items():
            self.parts[name][rows, :, blocks] = tensor

    def read(self, out: Float[Tensor, "batch heads blocks block dim"]) -> None:
        """Decode the first blocks into `out`; protected tokens get whatever their codes decode to."""
        count = out.shape[2]
        if self.grid.exact:
            out.copy_(self.parts["plain"][:, :, :count])
            return
        steps, codes = self.steps(count), self.grid.cut(self.codes(count))
        if self.grid.symmetric:
            codes = codes.to(torch.int16) - self.grid.top
        plain = out.dtype == torch.float32
        cut = self.grid.cut(out) if plain else torch.empty(codes.shape, device=out.device)
        torch.mul(codes, steps.step, out=cut)
        if steps.low is not None:
            cut += steps.low
        if not plain:
            out.copy_(cut.reshape(out.shape))

    def steps(self, count: int) -> Steps:
        """The ranges of the first blocks."""
        low = self.parts.get("low")
        step = self.parts["step"][:, :, :count].float()
        return Steps(step, None if low is None else low[:, :, :count].float())

    def codes(self, count: int) -> UInt8[Tensor, "batch heads blocks block dim"]:
        """The codes of the first blocks, starting at 0."""
        packed = self.parts["codes"][:, :, :count]
        flat = unpack(packed, self.grid.bits, self.block * self._width)
        return flat.unflatten(-1, (self.block, self._width))

    def over_batch(self, change: Callable[[Tensor], Tensor]) -> None:
        """Select, repeat or permute rows."""
        self.parts = {name: change(tensor) for name, tensor in self.parts.items()}

    def _encoded(self, x: Tensor, protected: Tensor | None) -> dict[str, Tensor]:
        steps = stored_steps(x, self.grid, protected)
        codes = encode(x, steps, self.grid) + (self.grid.top if self.grid.symmetric else 0)
        stored = {"codes": pack(codes.flatten(-2), self.grid.bits), "step": steps.step.to(torch.float16)}
        return stored if steps.low is None else stored | {"low": steps.low.to(torch.float16)}

    def _make_room(self, blocks: int, batch: int, new: dict[str, Tensor]) -> None:
        there = next(iter(self.parts.values())).shape[2] if self.parts else 0
        if blocks <= there:
            return
        size = blocks + (blocks // ROOM if there else 0)
        with torch.inference_mode(False):  # so that passes in any mode can write to them
            for name, tensor in new.items():
                made = torch.zeros(
                    batch, tensor.shape[1], size, *tensor.shape[2:], dtype=tensor.dtype, device=tensor.device
                )
                if there:
                    made[:, :, :there] = self.parts[name]
                self.parts[name] = made
