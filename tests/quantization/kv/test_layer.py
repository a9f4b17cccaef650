"""A layer of packed codes: what it stores, once, and what it hands out."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from sinkscope.caches import Coming
from sinkscope.caches.sizes import held_bytes
from sinkscope.errors import InputError
from sinkscope.grids import Q4_0, Fp8, MxFp4, Rotated
from sinkscope.quantization import Grid, SinkQuantizedLayer, Steps, effective_bits, fake_quantize
from sinkscope.quantization.kv import CacheScheme
from tests.quantization.kv.naive import NaiveLayer, Side

KIVI = CacheScheme(Grid(2, "channel", group=4), Grid(2, "token"))
DIM, HEADS = 12, 3
Pair = tuple[Tensor, Tensor]


def numbers(batch: int, tokens: int, seed: int = 0) -> Pair:
    generator = torch.Generator().manual_seed(seed)
    keys, values = torch.randn(2, batch, HEADS, tokens, DIM, generator=generator)
    return keys, values


def feed(
    layer: SinkQuantizedLayer,
    both: Pair,
    cuts: list[int],
    pads: list[int] | None = None,
    protected: Tensor | None = None,
) -> Pair:
    """Keys and values in passes that end at `cuts`; what the last one was handed."""
    told = None if pads is None else torch.tensor(pads)
    start = layer.seen
    for stop in cuts:
        layer.expect(Coming(start, stop - start, len(both[0]), told))
        layer.protect(None if protected is None else protected[:, start:stop])
        out = layer.update(both[0][:, :, start:stop], both[1][:, :, start:stop])
        start = stop
    return out


def one_by_one(tokens: int) -> list[int]:
    return list(range(1, tokens + 1))


GRIDS = {
    "kivi": (Grid(2, "channel", group=4), Grid(2, "token")),
    "token": (Grid(3, "token"), Grid(4, "token", group=6)),
    "symmetric": (Grid(3, "channel", group=4, symmetric=True), Grid(8, "token", symmetric=True)),
    "halves": (Grid(5, "channel", group=6), Grid(1, "channel", group=3)),
    "keys alone": (Grid(2, "channel", group=4), Grid(16)),
    "values alone": (Grid(16), Grid(7, "token", group=4)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("window", [0, 5])
def test_a_layer_is_the_naive_one(name: str, window: int) -> None:
    """In loops over ranges, from full precision, anew at each step; rows with padding and protected tokens."""
    grids, tokens, pads = GRIDS[name], 19, [0, 3]
    sides = [Side(grid.bits, grid.over, grid.group, grid.symmetric) for grid in grids]
    both = numbers(2, tokens)
    protected = torch.zeros(2, tokens, dtype=torch.bool)
    protected[0, [0, 7]] = protected[1, 5] = True
    for cuts in (one_by_one(tokens), [7, 8, 9, 15, *range(16, tokens + 1)]):
        layer = SinkQuantizedLayer(CacheScheme(*grids, window))
        naive = NaiveLayer(*sides, window, pads, protected)
        start = 0
        for stop in cuts:
            out = feed(layer, both, [stop], pads, protected)
            wanted = naive.update(*(x[:, :, start:stop] for x in both))
            for found, other in zip(out, wanted, strict=True):
                torch.testing.assert_close(found[0], other[0], atol=1e-6, rtol=1e-5)
                torch.testing.assert_close(found[1, :, 3:], other[1, :, 3:], atol=1e-6, rtol=1e-5)
            start = stop


@pytest.mark.slow
@pytest.mark.parametrize("pads", [None, [0, 3]])
@pytest.mark.parametrize("name", [*GRIDS, "rotated", "rows"])
def test_decoded_numbers_that_are_kept_are_those_that_are_read_anew(name: str, pads: list[int] | None) -> None:
    """Also after rows were chosen; and they count for no bytes."""
    more = {"rotated": (Rotated(Grid(4), multiple=4), Rotated(Q4_0(), 4, 4)), "rows": (Fp8(), MxFp4())}
    grids, tokens = {**GRIDS, **more}[name], 43
    both = tuple(torch.cat([x, x[..., :4]], -1) if name in more else x for x in numbers(2, tokens))
    both = tuple(torch.cat([x, x], -1) for x in both) if name in more else both  # formats have blocks of 32
    protected = torch.zeros(2, tokens, dtype=torch.bool)
    protected[0, [0, 7]] = protected[1, 5] = True
    for window, mask in ((0, protected), (5, None)):
        plain, kept = (SinkQuantizedLayer(CacheScheme(*grids, window)) for _ in range(2))
        kept.keeps_decoded = True
        for cuts in ([7, 8, 9, 15, *range(16, 25)], [30, 31, 32, 36, *range(37, tokens + 1)]):
            for stop in cuts:
                wanted, found = (feed(layer, both, [stop], pads, mask) for layer in (plain, kept))
                for a, b in zip(wanted, found, strict=True):
                    compared = (a, b) if pads is None else ([a[0], a[1, :, 3:]], [b[0], b[1, :, 3:]])
                    torch.testing.assert_close(*map(list, compared), rtol=1e-6 if name == "rotated" else 0, atol=0)
            assert held_bytes(kept) == held_bytes(plain)
            for layer in (plain, kept):
                layer.reorder_cache(torch.tensor([0, 1]))
        rows = torch.tensor([1, 0])
        for layer in (plain, kept):
            layer.reorder_cache(rows)
        assert kept._decoded is not None
        wanted = plain._returned(plain._closed_tokens(2))
        found = kept._returned(kept._closed_tokens(2))
        starts = plain._starts(2)
        for a, b in zip(wanted, found, strict=True):
            for row, start in enumerate(starts):
                torch.testing.assert_close(a[row, :, start:], b[row, :, start:], rtol=1e-6, atol=0)


def test_a_block_read_back_is_what_its_grid_says_bit_for_bit() -> None:
    both = numbers(2, 12)
    for grids in GRIDS.values():
        layer = SinkQuantizedLayer(CacheScheme(*grids))
        out = feed(layer, both, one_by_one(12))
        for side, x, found in zip(layer._sides, both, out, strict=True):
            blocks = x.unflatten(2, (-1, side.block))
            wanted = (
                blocks if side.numbers.exact else fake_quantize(blocks, side.numbers, steps=side.steps(blocks.shape[2]))
            )
            assert torch.equal(found, wanted.flatten(2, 3))
            if not side.numbers.exact:
                error = (side.numbers.cut(blocks) - side.numbers.cut(wanted)).abs()
                assert (error <= side.steps(blocks.shape[2]).step / 2 * (1 + 1e-4)).all()


def test_what_is_stored_does_not_depend_on_the_passes() -> None:
    both = numbers(2, 21)
    stored = []
    for cuts in ([21], one_by_one(21), [4, 5, 13, 21], [20, 21]):
        layer = SinkQuantizedLayer(KIVI)
        feed(layer, both, cuts)
        stored.append([side.parts[name][:, :, :5] for side in layer._sides for name in sorted(side.parts)])
        assert layer._open is not None
        stored[-1] += [part[:, :, -1:] for part in layer._open]
    for other in stored[1:]:
        assert all(torch.equal(a, b) for a, b in zip(stored[0], other, strict=True))


def test_a_block_is_written_once() -> None:
    """Codes that are made again of what was read back would drift; later tokens are ten times as large."""
    keys, values = numbers(1, 64)
    layer = SinkQuantizedLayer(KIVI)
    both = torch.cat([keys[:, :, :8], 10 * keys[:, :, 8:]], 2), torch.cat([values[:, :, :8], 10 * values[:, :, 8:]], 2)
    early = feed(layer, both, one_by_one(8))
    first = [side.parts[name][:, :, :2].clone() for side in layer._sides for name in side.parts]
    late = feed(layer, both, list(range(9, 65)))
    assert all(torch.equal(x[:, :, :8], y[:, :, :8]) for x, y in zip(early, late, strict=True))
    again = [side.parts[name][:, :, :2] for side in layer._sides for name in side.parts]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_nothing_looks_ahead() -> None:
    """What a token is handed does not change with those that come later, whatever they are."""
    both = numbers(1, 16)
    other = tuple(torch.cat([x[:, :, :10], 1000 * x[:, :, 10:]], 2) for x in both)
    for grids in GRIDS.values():
        seen = []
        for given in (both, other):
            layer = SinkQuantizedLayer(CacheScheme(*grids))
            out = [feed(layer, given, [stop]) for stop in range(1, 11)]  # type: ignore[arg-type]
            seen.append([x for pair in out for x in pair])
        assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))


def test_where_no_block_is_closed_it_is_transformers_own_layer() -> None:
    both = numbers(2, 9)
    layer, plain = SinkQuantizedLayer(CacheScheme(KIVI.keys, KIVI.values, window=6)), DynamicLayer()
    start = 0
    for stop in (4, 5, 9):
        wanted = plain.update(*(x[:, :, start:stop] for x in both))
        assert all(torch.equal(a, b) for a, b in zip(feed(layer, both, [stop]), wanted, strict=True))
        assert layer.get_mask_sizes(2) == plain.get_mask_sizes(2)
        start = stop
    assert layer.get_seq_length() == 9


def test_a_prompt_sees_itself_as_it_was_made_and_later_tokens_what_is_stored() -> None:
    both = numbers(1, 14)
    layer = SinkQuantizedLayer(KIVI)
    assert all(torch.equal(a, b[:, :, :13]) for a, b in zip(feed(layer, both, [13]), both, strict=True))
    later = feed(layer, both, [14])
    for found, x in zip(later, both, strict=True):
        assert not torch.equal(found[:, :, :12], x[:, :, :12])
        assert torch.equal(found[:, :, 12:], x[:, :, 12:])


def test_a_first_token_beyond_all_others_spoils_nothing_where_it_is_protected() -> None:
    """A BOS alone in the first pass, a thousand times as large."""
    both = numbers(1, 13)
    both[0][:, :, 0] *= 1000
    protected = torch.zeros(1, 13, dtype=torch.bool)
    protected[:, 0] = True
    errors = {}
    for name, mask in (("protected", protected), ("not", None)):
        out = feed(SinkQuantizedLayer(KIVI), both, one_by_one(13), protected=mask)
        errors[name] = float((out[0] - both[0])[:, :, 1:4].abs().mean())
        if mask is not None:
            assert torch.equal(out[0][:, :, 0], both[0][:, :, 0])
    assert errors["not"] > 20 * errors["protected"]


def test_padding_counts_for_nothing() -> None:
    """A row behind padding is the row alone, whatever stands in its padding."""
    both, pads = numbers(3, 23), [0, 5, 9]
    padded = tuple(x.clone() for x in both)
    for x in padded:
        x[1, :, :5] = x[2, :, :9] = 1000
    for cuts in (one_by_one(23), [11, 12, 20, 21, 22, 23]):
        layer = SinkQuantizedLayer(KIVI)
        out = feed(layer, padded, cuts, pads)  # type: ignore[arg-type]
        for row, pad in enumerate(pads):
            alone = SinkQuantizedLayer(KIVI)
            wanted = feed(
                alone, tuple(x[row : row + 1, :, pad:] for x in both), [cut - pad for cut in cuts if cut > pad]
            )  # type: ignore[arg-type]
            assert all(torch.equal(x[row, :, pad:], y[0]) for x, y in zip(out, wanted, strict=True))


def test_rows_chosen_repeated_and_permuted_go_on_as_they_would() -> None:
    both, pads = numbers(3, 22), [0, 2, 6]
    protected = torch.zeros(3, 22, dtype=torch.bool)
    protected[0, 1] = protected[2, 8] = protected[2, 17] = True
    layer = SinkQuantizedLayer(KIVI)
    feed(layer, both, [13, 14, 15, 18], pads, protected)
    order = torch.tensor([2, 0, 2])
    twins = [deepcopy(layer) for _ in range(3)]
    twins[0].reorder_cache(order)
    twins[1].batch_select_indices(order)
    twins[2].batch_select_indices(torch.tensor([True, False, True]))
    wanted = feed(layer, both, list(range(19, 23)), pads, protected)
    for twin, rows in zip(twins, (order, order, torch.tensor([0, 2])), strict=True):
        chosen = [pads[row] for row in rows.tolist()]
        found = feed(twin, (both[0][rows], both[1][rows]), list(range(19, 23)), chosen, protected[rows])
        for row, pad in enumerate(chosen):
            assert all(torch.equal(a[row, :, pad:], b[rows[row], :, pad:]) for a, b in zip(found, wanted, strict=True))


def test_a_row_repeated_is_twice_the_row() -> None:
    both = numbers(1, 12)
    protected = torch.zeros(1, 12, dtype=torch.bool)
    protected[0, 2] = True
    layer = SinkQuantizedLayer(KIVI)
    feed(layer, both, [9], protected=protected)
    layer.batch_repeat_interleave(2)
    twice = tuple(x.repeat_interleave(2, 0) for x in both)
    out = feed(layer, twice, [10, 11, 12], protected=protected.repeat(2, 1))  # type: ignore[arg-type]
    assert all(torch.equal(x[0], x[1]) for x in out)
    assert torch.equal(out[0][1, :, 2], both[0][0, :, 2])


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_bytes_are_those_of_the_formula(bits: int) -> None:
    """Codes, 16 bits for each step and lower end, and the open tokens as they are."""
    grids = Grid(bits, "channel", group=32), Grid(bits, "token")
    layer = SinkQuantizedLayer(CacheScheme(*grids))
    keys, values = torch.randn(2, 2, 4, 1003, 32)
    for stop in (900, *range(901, 1004)):
        start = layer.seen
        layer.expect(Coming(start, stop - start, 2))
        layer.update(keys[:, :, start:stop], values[:, :, start:stop])
    closed, rows = 992, 2 * 4 * 32
    formula = sum(closed * rows * effective_bits(grid, (32, 32)) / 8 for grid in grids) + 2 * (1003 - closed) * rows * 4
    assert layer._open is not None
    held = [*layer._open, *(part for side in layer._sides for part in side.parts.values())]
    nbytes = sum(tensor.untyped_storage().nbytes() for tensor in held)
    assert formula <= nbytes <= 1.1 * formula


def test_half_precision_stays_half_precision() -> None:
    both = tuple(x.bfloat16() for x in numbers(1, 12))
    layer = SinkQuantizedLayer(KIVI)
    out = feed(layer, both, one_by_one(12))  # type: ignore[arg-type]
    blocks = both[0].unflatten(2, (-1, 4))
    wanted = fake_quantize(blocks, Grid(2, "channel"), steps=_uncut(layer))
    assert out[0].dtype == torch.bfloat16
    assert torch.equal(out[0], wanted.flatten(2, 3))


def _uncut(layer: SinkQuantizedLayer) -> Steps:
    steps = layer._sides[0].steps(3)
    assert steps.low is not None
    return Steps(steps.step.squeeze(-3), steps.low.squeeze(-3))


def test_constant_blocks_and_blocks_of_protected_tokens_alone() -> None:
    both = torch.full((1, HEADS, 8, DIM), 3.7), torch.zeros(1, HEADS, 8, DIM)
    out = feed(SinkQuantizedLayer(KIVI), both, one_by_one(8))
    torch.testing.assert_close(out[0], both[0], rtol=1e-3, atol=0)
    assert torch.equal(out[1], both[1])
    all_protected = torch.ones(1, 8, dtype=torch.bool)
    random = numbers(1, 8)
    out = feed(SinkQuantizedLayer(KIVI), random, one_by_one(8), protected=all_protected)
    assert all(torch.equal(a, b) for a, b in zip(out, random, strict=True))


def test_what_cannot_be_stored_is_refused() -> None:
    with pytest.raises(InputError, match="one must divide the other"):
        CacheScheme(Grid(2, "channel", group=4), Grid(2, "channel", group=6))
    with pytest.raises(InputError, match="window"):
        CacheScheme(*GRIDS["kivi"], window=-1)
    for grid, says in ((Grid(2, "head"), "whole 'head'"), (Grid(2, "channel"), "whole 'channel'"), (Grid(9), "1 to 8")):
        with pytest.raises(InputError, match=says):
            CacheScheme(Grid(2), grid).check_stored()
    both = numbers(1, 4)
    both[0][0, 0, 1, 2] = torch.nan
    with pytest.raises(InputError, match="NaN or infinite"):
        feed(SinkQuantizedLayer(KIVI), both, [4])
    with pytest.raises(InputError, match=r"65,504"):
        feed(SinkQuantizedLayer(KIVI), (1e6 * numbers(1, 4)[0], both[1]), [4])
    with pytest.raises(InputError, match="groups of 5 do not divide"):
        feed(SinkQuantizedLayer(CacheScheme(Grid(2), Grid(2, "token", group=5))), numbers(1, 4), [4])


def test_a_layer_that_broke_off_is_not_gone_on_with() -> None:
    layer, both = SinkQuantizedLayer(KIVI), numbers(1, 4)
    layer.expect(Coming(2, 2, 1))
    with pytest.raises(InputError, match="interrupted"):
        layer.update(both[0][:, :, :2], both[1][:, :, :2])
    with pytest.raises(InputError, match="follows the model"):
        layer.update(both[0][:, :, :2], both[1][:, :, :2])
    for call in (layer.offload, layer.prefetch, lambda: layer.crop(-1)):
        with pytest.raises(InputError, match="cannot be"):
            call()
