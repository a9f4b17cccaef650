"""DuQuant: rotations aimed at outliers, and a permutation between them (Lin et al. 2024)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from sinkscope.errors import InputError
from sinkscope.grids import Blocks, Order, random_orthogonal
from sinkscope.interventions import Intervention
from sinkscope.quantization.linear.maps import HEAD, LinearMap, chosen, linear_maps, reachable
from sinkscope.quantization.linear.norms import sources
from sinkscope.quantization.linear.rotation import RotateInputs
from sinkscope.quantization.linear.smoothing import SmoothQuant
from sinkscope.quantization.linear.tokens import check_read, read_inputs
from sinkscope.quantization.linear.transform import Change, InputTransform
from sinkscope.quantization.protected import Protect
from sinkscope.registry import renamed_argument

BLOCK, STEPS, ROWS = 128, 256, 2048


@dataclass(frozen=True, eq=False)
class DuQuant(InputTransform):
    """x → ((x / s) R₁) P R₂ and W → ((W s) R₁) P R₂ at the input of each map. Made by `DuQuant.of`.

    s as in `SmoothQuant`. R is one orthogonal matrix for all blocks of `block` inputs, a product of steps: each moves
    the column of the largest entry to the front and mixes it with all others (`aimed`); of all partial products, the
    one with the least max − min over calibration tokens is kept. P deals columns to blocks by their maxima, back and
    forth (`zigzag`), so that no block gets all large ones. Maps that read the same tensor share all three.

    Widths that 128 does not divide have blocks of their largest divisor below it. 256 steps, where the paper takes up
    to 1024. The released code uses the row of the largest entry, modulo the block, as its column; here it is the
    column, as in the paper's text. Control: random rotations of the same inputs. Source: Lin et al. 2024;
    Hsu1023/DuQuant, quantize/quantizer.py and get_rot.py.
    """

    made: Mapping[str, Change] = field(repr=False)
    block: int = BLOCK
    steps: int = STEPS
    seed: int = 0
    alpha: float | None = 0.5

    @classmethod
    @renamed_argument("spared", "protect")
    def of(
        cls,
        model: nn.Module,
        inputs: Any,
        *,
        block: int = BLOCK,
        steps: int = STEPS,
        alpha: float | None = 0.5,
        seed: int = 0,
        protect: Protect | str | None = None,
        skip: Sequence[str] = (HEAD,),
        batch_size: int = 8,
    ) -> DuQuant:
        """Calibrated on the first 2048 real, unprotected tokens of `inputs`.

        Args:
            model: Any transformers model.
            inputs: Calibration texts, as `measure` takes them.
            block: Inputs that one rotation mixes.
            steps: Rotations that are tried.
            alpha: As in `SmoothQuant`; None for no smoothing.
            seed: For the random parts of the rotations.
            protect: Tokens to leave out.
            skip: Maps that stay unchanged (`linear_maps`).
            batch_size: Rows per forward pass.

        Raises `InputError` for blocks below 2, a negative number of steps, and maps that no token reached.
        """
        if block < 2 or steps < 0:
            raise InputError(f"block = {block}, steps = {steps}: expected block ≥ 2 and steps ≥ 0")
        options: dict[str, Any] = {"protect": protect, "skip": skip, "batch_size": batch_size}
        scales: Mapping[str, Tensor] = {} if alpha is None else SmoothQuant.of(model, inputs, alpha, **options).scales
        maps = linear_maps(model, skip)
        calibration: dict[str, Tensor] = {}

        def read(path: str, rows: Tensor, experts: Tensor | None) -> None:
            before = calibration.get(path, rows[:0])
            calibration[path] = torch.cat([before, rows[: ROWS - len(before)]])

        read_inputs(model, inputs, maps.values(), read, protect, None, batch_size)
        # `read` is also called without any row, if all tokens of a pass are protected.
        check_read(maps, [path for path, rows in calibration.items() if len(rows)])
        generator = torch.Generator().manual_seed(seed)
        made: dict[str, Change] = {}
        for source in sources(model, inputs, maps):
            first = source.maps[0]
            scale = scales.get(first)
            rows = calibration[first].double() if scale is None else calibration[first].double() / scale
            made |= dict.fromkeys(source.maps, _change(rows, scale, block, steps, generator))
        return cls(made, block, steps, seed, alpha)

    def changes(self, model: nn.Module) -> Mapping[LinearMap, Change]:
        maps = chosen(model, self.made, "DuQuant")
        return {maps[path]: change for path, change in self.made.items()}

    def control(self, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> Intervention:
        others = [path for path in reachable(model) if path not in self.made]
        seed = int(torch.randint(2**31, (1,), generator=generator))
        return RotateInputs(kind="orthogonal", seed=seed, skip=tuple(others))

    def describe(self) -> dict[str, Any]:
        return {"name": "DuQuant", "block": self.block, "steps": self.steps, "seed": self.seed, "alpha": self.alpha}


def greedy_rotation(
    rows: Float[Tensor, "row in"], block: int, steps: int, generator: torch.Generator
) -> Float[Tensor, "block block"]:
    """The product of at most `steps` aimed rotations with the least max − min over the blocks."""
    now = rows.reshape(-1, block)  # (row · blocks, block), since all blocks share the rotation
    product = best = torch.eye(block, dtype=rows.dtype, device=rows.device)
    least = now.max() - now.min()
    for _ in range(steps):
        step = aimed(block, int(now.abs().amax(0).argmax()), generator).to(rows)
        now, product = now @ step, product @ step
        if (peak := now.max() - now.min()) < least:
            least, best = peak, product
    return best


def aimed(block: int, column: int, generator: torch.Generator) -> Float[Tensor, "block block"]:
    """An orthogonal matrix that spreads one column over all: E_c G diag(1, Q) E_c, with E_c exchanging 0 and c, Q
    random.

    G is a product of Givens rotations whose first row is 1/√block.
    """
    mixed = givens(block).clone()  # cached, so not to be written to
    mixed[:, 1:] = mixed[:, 1:] @ random_orthogonal(block - 1, generator)
    order = torch.arange(block)
    order[0], order[column] = column, 0
    return mixed[order][:, order]


@cache
def givens(block: int) -> Float[Tensor, "block block"]:
    """Rotations in the planes (0, 1), (1, 2), … with cosines 1/√(i+2), then axes 0 and block − 1 exchanged."""
    product = torch.eye(block, dtype=torch.float64)
    # Row i + 1 becomes the even mix of axes 0 … i + 1: √((i + 1) / (i + 2)) times that of axes 0 … i, plus axis i + 1
    # over √(i + 2). The last row, 1/√block everywhere, then moves to the front.
    for i in range(block - 1):
        cosine, sine = (1 / (i + 2)) ** 0.5, ((i + 1) / (i + 2)) ** 0.5
        first, second = product[i].clone(), product[i + 1].clone()  # rows are views, and both are overwritten
        product[i], product[i + 1] = cosine * first - sine * second, sine * first + cosine * second
    order = torch.arange(block)
    order[0], order[block - 1] = block - 1, 0
    return product[order][:, order]


def zigzag(rows: Float[Tensor, "row in"], block: int) -> Int[Tensor, "in"]:
    """Columns dealt to blocks by decreasing max |x|: 0, 1, …, m − 1, m − 1, …, 0, 0, …; the largest first in each."""
    count = rows.shape[1] // block
    round_trip = [*range(count), *reversed(range(count))]
    dealt: list[list[int]] = [[] for _ in range(count)]
    for turn, column in enumerate(rows.abs().amax(0).argsort(descending=True, stable=True).tolist()):
        dealt[round_trip[turn % len(round_trip)]].append(column)
    return torch.tensor([column for block_columns in dealt for column in block_columns], device=rows.device)


def block_of(width: int, block: int) -> int:
    """The largest divisor of a width that is at most `block`."""
    return next(size for size in range(min(block, width), 0, -1) if width % size == 0)


def _change(rows: Tensor, scale: Tensor | None, block: int, steps: int, generator: torch.Generator) -> Change:
    size = block_of(rows.shape[1], block)
    if size == 1:  # nothing to mix
        return Change(scale)
    first = Blocks(greedy_rotation(rows, size, steps, generator))
    order = Order(zigzag(first(rows), size))
    second = Blocks(greedy_rotation(order(first(rows)), size, steps, generator))
    return Change(scale, (first, order, second))
