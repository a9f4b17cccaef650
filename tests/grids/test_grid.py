"""A grid against torch's own quantizer, its identities, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sinkscope.errors import InputError
from sinkscope.grids import Grid, effective_bits, fake_quantize, steps_of


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_symmetric_grids_are_torchs_bit_for_bit(bits: int) -> None:
    x, grid = numbers(6, 33), Grid(bits, symmetric=True)
    step = steps_of(x, grid).step.flatten()
    theirs = torch.fake_quantize_per_channel_affine(x, step, torch.zeros(6, dtype=torch.int32), 0, -grid.top, grid.top)
    assert torch.equal(fake_quantize(x, grid), theirs)


@given(bits=st.integers(1, 15), over=st.sampled_from(["token", "channel", "head", "tensor"]))
def test_no_number_moves_by_more_than_half_a_step(bits: int, over: str) -> None:
    x, grid = numbers(2, 3, 5, 7), Grid(bits, over)  # type: ignore[arg-type]
    assert ((fake_quantize(x, grid) - x).abs() <= steps_of(x, grid).step / 2 + 1e-6).all()


def test_who_shares_a_range() -> None:
    x = numbers(2, 3, 8, 6)
    shapes = {over: tuple(steps_of(x, Grid(4, over)).step.shape) for over in ("token", "channel", "head", "tensor")}  # type: ignore[arg-type]
    assert shapes == {"token": (2, 3, 8, 1), "channel": (2, 3, 1, 6), "head": (2, 3, 1, 1), "tensor": (1, 1, 1, 1)}
    assert steps_of(x, Grid(4, "channel", group=4)).step.shape == (2, 3, 2, 1, 6)
    assert steps_of(x, Grid(4, "token", group=3)).step.shape == (2, 3, 8, 2, 1)


def test_groups_are_quantized_each_alone() -> None:
    x, grid = numbers(1, 1, 8, 6), Grid(2, "channel", group=4)
    halves = [fake_quantize(x[..., part, :], Grid(2, "channel")) for part in (slice(4), slice(4, 8))]
    assert torch.equal(fake_quantize(x, grid), torch.cat(halves, -2))


def test_protected_entries_stay_and_leave_the_range_alone() -> None:
    x = numbers(1, 9, 6)
    x[0, 4] = 1000
    protected = torch.zeros(1, 9, 1, dtype=torch.bool)
    protected[0, 4] = True
    rest = [i for i in range(9) if i != 4]
    out = fake_quantize(x, Grid(4, "tensor"), protected)
    assert torch.equal(out[0, 4], x[0, 4])
    assert torch.equal(out[0, rest], fake_quantize(x[0, rest], Grid(4, "tensor")))
    assert not torch.allclose(out[0, rest], fake_quantize(x, Grid(4, "tensor"))[0, rest])
    assert torch.equal(fake_quantize(x, Grid(1, "tensor"), torch.ones_like(protected)), x)


@pytest.mark.parametrize("of_rows", [True, False])
@pytest.mark.parametrize("symmetric", [True, False])
@given(bits=st.integers(2, 9), over=st.sampled_from(["token", "channel", "head", "tensor"]), seed=st.integers(0, 99))
def test_protected_rounding_is_that_of_one_entry_after_the_other(
    bits: int, over: str, seed: int, symmetric: bool, of_rows: bool
) -> None:
    """Ranges found by masks over every entry, codes as whole numbers; rows and whole ranges may be protected."""
    x, grid = numbers(2, 3, 5, 7), Grid(bits, over, symmetric=symmetric)  # type: ignore[arg-type]
    protected = torch.rand(2, 1, 5, 1 if of_rows else 7, generator=torch.Generator().manual_seed(seed)) < 0.4
    x = torch.where(protected & (x > 1), torch.nan, x)  # what is protected may be anything
    whole, axes = protected.expand(x.shape), grid.shared(x)
    high = torch.where(whole, -torch.inf, x).amax(axes, keepdim=True)
    low = torch.where(whole, torch.inf, x).amin(axes, keepdim=True)
    high, low = high.where(high > -torch.inf, 0.0), low.where(low < torch.inf, 0.0)
    step = torch.maximum(high, -low) / grid.top if symmetric else (high - low) / grid.top
    inverse = torch.where(step > 0, 1 / step, 0)
    codes = ((x if symmetric else x - low) * inverse).round().clamp(-grid.top if symmetric else 0, grid.top)
    naive = torch.where(whole, x, codes.nan_to_num().int() * step + (0.0 if symmetric else low))
    assert torch.equal(fake_quantize(x, grid, protected).nan_to_num(99), naive.nan_to_num(99))
    open_entry = int((~whole).flatten().int().argmax())
    if not whole.all():
        x.view(-1)[open_entry] = torch.inf
        with pytest.raises(InputError, match="infinite"):
            fake_quantize(x, grid, protected)


def test_constant_groups_and_sixteen_bits_are_left_as_they_are() -> None:
    constant = torch.full((3, 4), 0.7)
    assert torch.equal(fake_quantize(constant, Grid(2)), constant)
    x = numbers(3, 4)
    assert fake_quantize(x, Grid(16)) is x


@pytest.mark.parametrize("symmetric", [True, False])
def test_ranges_too_narrow_for_a_step_are_one_value(symmetric: bool) -> None:
    """One over a step below 3e-39 is infinite in fp32."""
    grid, tiny = Grid(8, symmetric=symmetric), torch.tensor([0.0, 1.0, 2.0])
    for size in (1e-37, 1e-40, 1e-45):
        assert torch.equal(fake_quantize(size * tiny, grid), torch.zeros(3))
    found = fake_quantize(1e-36 * tiny, grid)
    assert ((found - 1e-36 * tiny).abs() <= steps_of(1e-36 * tiny, grid).step).all()
    assert found[2] > found[1] > 0


def test_the_gradient_passes_straight_through() -> None:
    x = numbers(3, 4).requires_grad_()
    weight = numbers(3, 4) * 2
    found = fake_quantize(x, Grid(2))
    (found * weight).sum().backward()
    assert torch.equal(x.grad, weight)
    assert torch.equal(found, fake_quantize(x.detach(), Grid(2)))


def test_frozen_steps_clip_what_lies_beyond_them() -> None:
    steps = steps_of(torch.tensor([[-1.0, 1.0]]), Grid(2, symmetric=True))
    out = fake_quantize(torch.tensor([[-9.0, 9.0]]), Grid(2, symmetric=True), steps=steps)
    assert out.tolist() == [[-1.0, 1.0]]


def test_scales_count() -> None:
    assert effective_bits(Grid(2), (1, 4, 100, 32)) == 3
    assert effective_bits(Grid(8, "tensor", symmetric=True), (4, 4)) == 9
    assert effective_bits(Grid(16), (4, 4)) == 16


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"bits": 0}, "from 1 to 16"),
        ({"bits": 17}, "from 1 to 16"),
        ({"bits": True}, "from 1 to 16"),
        ({"bits": 1, "symmetric": True}, "1 bit"),
        ({"bits": 4, "over": "row"}, "token, channel, head, tensor"),
        ({"bits": 4, "over": "head", "group": 4}, "has no groups"),
        ({"bits": 4, "group": 0}, "positive whole number"),
    ],
)
def test_grids_that_are_none(options: dict, says: str) -> None:
    with pytest.raises(InputError, match=says):
        Grid(**options)


def test_groups_that_do_not_divide_and_numbers_that_are_none() -> None:
    with pytest.raises(InputError, match="groups of 4 do not divide 6 channels: use one of 2, 3, 6"):
        fake_quantize(numbers(2, 6), Grid(4, group=4))
    broken = numbers(2, 6)
    broken[1, 2] = torch.nan
    with pytest.raises(InputError, match="NaN or infinite"):
        fake_quantize(broken, Grid(4))
    protected = broken.isnan()
    assert fake_quantize(broken, Grid(4), protected)[1, 2].isnan()
