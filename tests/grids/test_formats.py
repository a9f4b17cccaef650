"""Formats of engines against loops over one number at a time, their golden blocks, and what they refuse."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from sinkscope.errors import InputError
from sinkscope.grids import (
    IQ4_NL,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Fp8,
    Fp8Rows,
    Grid,
    LloydMax,
    MinMax,
    MxFp4,
    NvFp4,
    Rotated,
    RowFormat,
    bits_of,
    largest_scale,
    lloyd_max,
)

WIDTH = 64
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def half(x: float) -> float:
    return float(torch.tensor(x).half())


def e4m3(x: float) -> float:
    """The nearest E4M3 number by its bits: halves to even, 448 at most, 2^-9 the least."""
    size = min(abs(x), 448.0)
    if size == 0:
        return 0.0
    step = 2.0 ** (max(math.floor(math.log2(size)), -6) - 3)
    return math.copysign(min(round(size / step) * step, 448.0), x)


def e2m1(x: float) -> float:
    """The nearest of E2M1's numbers; halves to the one with an even code."""
    size = min(abs(x), 6.0)
    code = min(range(8), key=lambda i: (abs(E2M1[i] - size), i % 2))
    return math.copysign(E2M1[code], x)


KVALUES_IQ4NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def ggml(row: list[float], kind: str) -> list[float]:
    """A row of 32 by ggml's reference quantizers."""
    largest = max(row, key=abs)
    if kind in ("q4_1", "q5_1"):
        top = 15 if kind == "q4_1" else 31
        low, scale = min(row), (max(row) - min(row)) / top
        return [min(top, int((x - low) / scale + 0.5)) * half(scale) + half(low) if scale else half(low) for x in row]
    if kind == "iq4_nl":
        if not largest:
            return [0.0] * 32
        scale = largest / KVALUES_IQ4NL[0]
        levels = [min(reversed(KVALUES_IQ4NL), key=lambda level: abs(level - x / scale)) for x in row]
        fit = sum(x**3 * q for x, q in zip(row, levels, strict=True))
        fit /= sum((x * q) ** 2 for x, q in zip(row, levels, strict=True))
        return [half(fit) * q for q in levels]
    if kind == "q8_0":
        scale = abs(largest) / 127
        ratios = [x / scale if scale else 0.0 for x in row]
        return [half(scale) * int(abs(r) + 0.5) * (1 if r >= 0 else -1) for r in ratios]
    middle = 8 if kind == "q4_0" else 16
    scale = largest / -middle
    ratios = [x / scale if scale else 0.0 for x in row]
    return [half(scale) * (min(2 * middle - 1, int(r + middle + 0.5)) - middle) for r in ratios]


def nvfp4(block: list[float], whole: float, largest: float = 6.0) -> list[float]:
    scale = e4m3(max(map(abs, block)) / (largest * whole))
    return [e2m1(x / (scale * whole)) * scale * whole if scale else 0.0 for x in block]


def four_over_six(block: list[float], whole: float) -> list[float]:
    def error(rounded: list[float]) -> float:
        return sum((x - y) ** 2 for x, y in zip(block, rounded, strict=True))

    return min((nvfp4(block, whole, largest) for largest in (6.0, 4.0)), key=error)


def mxfp4(block: list[float]) -> list[float]:
    largest = max(map(abs, block))
    scale = 2.0 ** (math.floor(math.log2(largest)) - 2) if largest else 1.0
    return [e2m1(x / scale) * scale for x in block]


def levels(row: list[float], bits: int, renormalize: bool) -> list[float]:
    """TurboQuant's keys by the steps of vLLM's kernels: the first border that is above a number ends its interval."""
    norm = math.sqrt(sum(x * x for x in row))
    centers = lloyd_max(len(row), bits).tolist()
    borders = [(a + b) / 2 for a, b in pairwise(centers)]
    found = [centers[sum(x / (norm + 1e-8) >= border for border in borders)] for x in row]
    length = math.sqrt(sum(x * x for x in found)) if renormalize else 1.0
    return [half(norm) * x / length for x in found]


def min_max(row: list[float], bits: int) -> list[float]:
    low, top = min(row), 2**bits - 1
    step = max((max(row) - low) / top, 1e-8)
    return [min(max(int((x - low) / step + 0.5), 0), top) * half(step) + half(low) for x in row]


def fp8_rows(row: list[float]) -> list[float]:
    scale = max(max(map(abs, row)) / 448, 1e-6)
    return [e4m3(x / scale) * scale for x in row]


def blocks(size: int, block: Callable[[list[float]], list[float]]) -> Callable[[list[float]], list[float]]:
    return lambda row: [x for start in range(0, len(row), size) for x in block(row[start : start + size])]


NAIVE: dict[str, tuple[RowFormat, Callable[[list[float]], list[float]], float]] = {
    "q8_0": (Q8_0(), blocks(32, lambda row: ggml(row, "q8_0")), 8.5),
    "q5_1": (Q5_1(), blocks(32, lambda row: ggml(row, "q5_1")), 6),
    "q5_0": (Q5_0(), blocks(32, lambda row: ggml(row, "q5_0")), 5.5),
    "q4_1": (Q4_1(), blocks(32, lambda row: ggml(row, "q4_1")), 5),
    "iq4_nl": (IQ4_NL(), blocks(32, lambda row: ggml(row, "iq4_nl")), 4.5),
    "q4_0": (Q4_0(), blocks(32, lambda row: ggml(row, "q4_0")), 4.5),
    "fp8": (Fp8(), lambda row: list(map(e4m3, row)), 8),
    "fp8, scale": (Fp8(0.01), lambda row: [e4m3(x / 0.01) * 0.01 for x in row], 8),
    "fp8_per_token_head": (Fp8Rows(), fp8_rows, 8 + 32 / WIDTH),
    "nvfp4": (NvFp4(), blocks(16, lambda row: nvfp4(row, 1.0)), 4.5),
    "nvfp4, scale": (NvFp4(0.01), blocks(16, lambda row: nvfp4(row, 0.01)), 4.5),
    "nvfp4_4over6": (NvFp4(four_over_six=True), blocks(16, lambda row: four_over_six(row, 1.0)), 4.5),
    "mxfp4": (MxFp4(), blocks(32, mxfp4), 4.25),
    "levels of 2 bits": (LloydMax(2, False), lambda row: levels(row, 2, False), (2 * WIDTH + 16) / WIDTH),
    "levels of 3 bits, _nc": (LloydMax(3), lambda row: levels(row, 3, True), (3 * WIDTH + 16) / WIDTH),
    "levels of 4 bits, _nc": (LloydMax(4), lambda row: levels(row, 4, True), (4 * WIDTH + 16) / WIDTH),
    "min-max of 3 bits": (MinMax(3), lambda row: min_max(row, 3), (3 * WIDTH + 32) / WIDTH),
    "min-max of 4 bits": (MinMax(4), lambda row: min_max(row, 4), (4 * WIDTH + 32) / WIDTH),
}


def rows() -> Tensor:
    """Ordinary rows, one of zeros, one with an outlier, one that is far from 0, one of tiny numbers."""
    x = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(0))
    x[1] = 0
    x[2, 5] = -37
    x[3] += 200
    x[4] *= 1e-3
    return x


@pytest.mark.parametrize("name", NAIVE)
def test_a_format_is_its_loop(name: str) -> None:
    numbers, loop, bits = NAIVE[name]
    x = rows()
    wanted = torch.tensor([loop(row) for row in x.tolist()])
    torch.testing.assert_close(numbers.rounded(x), wanted, atol=1e-6, rtol=1e-5)
    assert bits_of(numbers, (5, WIDTH)) == bits
    assert sum(part.nbytes for part in numbers.encode(x)) * 8 == bits * x.numel()


@pytest.mark.parametrize("numbers", [Q4_0(), Q4_1(), Q5_0(), Q5_1(), Q8_0()])
def test_ggml_blocks_are_those_of_the_package_gguf(numbers: RowFormat) -> None:
    quants = pytest.importorskip("gguf.quants")
    kind = quants.GGMLQuantizationType[numbers.name.upper()]
    x = rows()
    wanted = quants.dequantize(quants.quantize(x.numpy(), kind), kind)
    torch.testing.assert_close(numbers.rounded(x), torch.from_numpy(wanted), atol=1e-6, rtol=1e-5)


def test_the_levels_of_iq4_nl_are_those_of_the_package_gguf() -> None:
    assert pytest.importorskip("gguf.quants").IQ4_NL.kvalues == IQ4_NL.levels == KVALUES_IQ4NL


def test_halves_between_the_levels_of_iq4_nl_go_up() -> None:
    halves = [(low + high) / 2 for low, high in pairwise(KVALUES_IQ4NL)]
    x = torch.tensor([-127.0, *halves, *halves, 0.0])  # d' = 1
    torch.testing.assert_close(IQ4_NL().rounded(x), torch.tensor(ggml(x.tolist(), "iq4_nl")))


@pytest.mark.parametrize("name", NAIVE)
def test_dtype_shape_and_gradient_are_those_of_the_numbers(name: str) -> None:
    numbers = NAIVE[name][0]
    x = rows().view(2, 3, WIDTH).bfloat16().requires_grad_()
    found = numbers.rounded(x)
    assert (found.dtype, found.shape) == (x.dtype, x.shape)
    assert not torch.equal(found, x)
    found.sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))  # type: ignore[arg-type]


def test_codes_of_four_bits_at_the_borders_go_to_the_even_code() -> None:
    x = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0] * 2).mul(torch.tensor([1.0] * 8 + [-1.0] * 8))
    assert NvFp4().rounded(x).tolist() == [0, 1, 1, 2, 2, 4, 4, 6, -0.0, -1, -1, -2, -2, -4, -4, -6]


def test_fp8_saturates_and_a_calibrated_scale_does_not() -> None:
    x = torch.tensor([1e4, -1e4, 0.3, 2.0**-10])
    assert Fp8().rounded(x).tolist() == [448.0, -448.0, 0.3125, 0.0]
    torch.testing.assert_close(Fp8(largest_scale(x)).rounded(x)[:2], x[:2])
    by_layer = Fp8({3: 2.0})
    assert by_layer.at(3) == Fp8(2.0)
    with pytest.raises(InputError, match="no scale was calibrated for layer 4"):
        by_layer.at(4)


def naive_lloyd_max(dim: int, bits: int) -> list[float]:
    """vLLM's `solve_lloyd_max` as its loops: 200 trapezoids in each interval, 200 rounds."""
    deviation = 1 / math.sqrt(dim)

    def density(x: float) -> float:
        return math.exp(-x * x * dim / 2)

    def integral(f: Callable[[float], float], a: float, b: float) -> float:
        h = (b - a) / 200
        return h * (f(a) / 2 + f(b) / 2 + sum(f(a + i * h) for i in range(1, 200)))

    count, end = 2**bits, 3.5 * deviation
    centers = [-end + 2 * end * (i + 0.5) / count for i in range(count)]
    for _ in range(200):
        borders = [(a + b) / 2 for a, b in pairwise(centers)]
        edges = [-3 * end, *borders, 3 * end]
        new = [integral(lambda x: x * density(x), a, b) / integral(density, a, b) for a, b in pairwise(edges)]
        moved = max(abs(a - b) for a, b in zip(new, centers, strict=True))
        if moved < 1e-10:
            break
        centers = new
    return centers


@pytest.mark.parametrize(("dim", "bits"), [(64, 2), (64, 3), (128, 3)])
def test_levels_are_those_of_vllms_loop(dim: int, bits: int) -> None:
    torch.testing.assert_close(lloyd_max(dim, bits), torch.tensor(naive_lloyd_max(dim, bits)), atol=1e-6, rtol=1e-5)


# Max 1960, table I: levels of least squared error for N(0, 1), and their error.
MAX = {
    2: ([0.4528, 1.510], 0.1175),
    3: ([0.2451, 0.7560, 1.344, 2.152], 0.03454),
    4: ([0.1284, 0.3881, 0.6568, 0.9424, 1.256, 1.618, 2.069, 2.733], 0.009497),
}


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("bits", MAX)
def test_levels_are_the_published_ones_and_rotated_vectors_lose_what_they_predict(dim: int, bits: int) -> None:
    positive, distortion = MAX[bits]
    found = lloyd_max(dim, bits) * dim**0.5
    torch.testing.assert_close(found[2 ** (bits - 1) :], torch.tensor(positive), atol=2.5e-3, rtol=0)
    torch.testing.assert_close(found, -found.flip(0), atol=1e-5, rtol=0)
    x = torch.randn(4000, dim, generator=torch.Generator().manual_seed(bits))
    x[:, 3] *= 4  # rotation spreads it
    numbers = Rotated(LloydMax(bits, renormalize=False))
    turn = numbers.matrix(dim)
    assert turn is not None
    error = (turn(LloydMax(bits, False).rounded(turn(x))) - x).square().sum(-1) / x.square().sum(-1)
    assert float(error.mean()) == pytest.approx(distortion, rel=0.06)


@pytest.mark.parametrize(("width", "largest", "size"), [(64, None, 64), (96, None, 32), (128, 64, 64), (7, None, 1)])
def test_a_rotation_is_undone_by_itself_and_keeps_scores(width: int, largest: int | None, size: int) -> None:
    turn = Rotated(Grid(4), largest).matrix(width)
    keys, query = torch.randn(2, 9, width, generator=torch.Generator().manual_seed(0)).unbind(0)
    if size == 1:
        assert turn is None
        return
    assert turn is not None
    assert len(turn.matrix) == size
    torch.testing.assert_close(turn(turn(keys)), keys)
    torch.testing.assert_close(turn(query) @ turn(keys).T, query @ keys.T, atol=2e-5, rtol=1e-5)
    one = torch.zeros(width).index_fill_(0, torch.tensor(0), 1.0)
    assert torch.count_nonzero(turn(one)) == size


@pytest.mark.parametrize(("numbers", "block"), [(Q4_0(), 32), (NvFp4(), 16), (MxFp4(), 32)])
def test_blocks_that_do_not_fit_are_refused(numbers: RowFormat, block: int) -> None:
    with pytest.raises(InputError, match=f"rows of 40 numbers: {numbers.name} needs a multiple of {block}"):
        numbers.encode(torch.zeros(2, 40))


def test_levels_of_other_bits_are_refused() -> None:
    with pytest.raises(InputError, match="expected 2, 3 or 4"):
        LloydMax(5)
    with pytest.raises(InputError, match="expected 2 to 8"):
        MinMax(1)
