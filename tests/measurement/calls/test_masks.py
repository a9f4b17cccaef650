"""Every form of a mask says the same as the boolean matrix that it stands for."""

from __future__ import annotations

import pytest
import torch

from sinkscope.attention import Causal, Full, Visibility, VisiblePrefix, Window
from sinkscope.measurement.calls.masks import Bound, DenseMask, Rule, VisibleKeys, WrittenMasks

BATCH, QUERIES, KEYS = 2, 7, 11
ALL = slice(0, BATCH), slice(0, QUERIES), slice(0, KEYS)


def rule(queries: int = QUERIES, keys: int = KEYS, **options: object) -> tuple[VisibleKeys, torch.Tensor]:
    """A rule and its matrix, written with loops."""
    mask = Rule(keys, **options)
    start, window, padding = mask.start, mask.window, mask.padding
    matrix = torch.zeros(BATCH, 1, queries, keys, dtype=torch.bool)
    for sample in range(BATCH):
        for query in range(queries):
            for key in range(keys):
                distance = start + query - key
                allowed = not mask.causal or distance >= 0
                allowed = allowed and (window is None or abs(distance) < window)
                allowed = allowed and (padding is None or bool(padding[sample, key]))
                matrix[sample, 0, query, key] = allowed
    return mask, matrix


PADDING = torch.tensor([[False] * 3 + [True] * 8, [True] * 11])
BOUND = {
    "window": Visibility.of(Causal() & Window(3), QUERIES, KEYS),
    "prefix": Visibility.of(Causal() | VisiblePrefix(6), QUERIES, KEYS, attention_mask=PADDING.long()),
    "full": Visibility.of(Full(), QUERIES, KEYS),
}
CASES = {
    "full": rule(causal=False),
    "top left": rule(causal=True),
    "cached": rule(causal=True, start=4),
    "window": rule(causal=True, start=4, window=3),
    "both sides": rule(causal=False, start=2, window=4),
    "padding": rule(causal=True, start=4, padding=PADDING),
} | {f"bound {name}": (Bound(visibility), visibility.dense()) for name, visibility in BOUND.items()}
CASES |= {f"written {name}": (DenseMask(matrix), matrix) for name, (_, matrix) in CASES.items()}


@pytest.mark.parametrize("case", CASES)
def test_a_mask_says_what_its_matrix_says(case: str) -> None:
    mask, matrix = CASES[case]
    matrix = matrix.expand(BATCH, -1, -1, -1)
    assert mask.keys == KEYS
    assert torch.equal(mask.visible(*ALL).expand(BATCH, 1, QUERIES, KEYS), matrix)
    for sample in range(BATCH):
        for start in range(QUERIES):
            samples, rows = slice(sample, sample + 1), slice(start, min(QUERIES, start + 3))
            columns = mask.extent(samples, rows)
            assert not matrix[samples, :, rows, : columns.start].any()
            assert not matrix[samples, :, rows, columns.stop :].any()
            scores = torch.randn(1, 2, rows.stop - start, columns.stop - columns.start)
            wanted = scores.masked_fill(~matrix[samples, :, rows, columns], -torch.inf)
            mask.restrict(scores, samples, rows, columns)
            assert torch.equal(scores, wanted)


@pytest.mark.parametrize("case", CASES)
def test_columns_can_be_chosen_per_sample(case: str) -> None:
    mask, matrix = CASES[case]
    index = torch.tensor([[0, 5, 10], [3, 4, 0]])
    scores = torch.randn(BATCH, 2, QUERIES, 3)
    chosen = torch.stack([matrix.expand(BATCH, -1, -1, -1)[row][..., index[row]] for row in range(BATCH)])
    wanted = scores.masked_fill(~chosen, -torch.inf)
    mask.restrict(scores, *ALL[:2], index)
    assert torch.equal(scores, wanted)


def test_numbers_are_added_and_very_low_ones_mask() -> None:
    added = torch.zeros(1, 1, QUERIES, KEYS)
    added[..., 2] = -3.0
    added[..., 3] = torch.finfo(torch.float32).min
    added[..., 4] = -torch.inf
    scores = torch.ones(1, 2, QUERIES, KEYS)
    DenseMask(added).restrict(scores, slice(0, 1), *ALL[1:])
    assert scores[0, 0, 0, :5].tolist() == [1.0, 1.0, -2.0, -torch.inf, -torch.inf]


def test_the_range_of_a_window_does_not_grow_with_the_sequence() -> None:
    for mask in (Rule(512, causal=True, window=16), Bound(Visibility.of(Causal() & Window(16), 512, 512))):
        columns = mask.extent(slice(0, 1), slice(256, 288))
        assert (columns.start, columns.stop) == (241, 288)


SQUARE = 6
REAL = torch.tensor([[False, False, True, True, True, True], [True] * 6])
LOWER = torch.ones(SQUARE, SQUARE, dtype=torch.bool).tril()
PREFIXED = LOWER | (torch.arange(SQUARE) < 3)
AHEAD = {
    "causal": (LOWER[None, None], False),
    "causal behind padding": ((LOWER & REAL[:, None])[:, None], False),
    "bidirectional": (torch.ones(1, 1, SQUARE, SQUARE, dtype=torch.bool), True),
    "bidirectional behind padding": ((REAL[:, None, :] & REAL[:, :, None])[:, None], True),
    "bidirectional window": (torch.ones(SQUARE, SQUARE, dtype=torch.bool).triu(-1).tril(1)[None, None], True),
    "causal window": (LOWER.triu(-1)[None, None], False),
    "prefix": (PREFIXED[None, None], None),
}


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", AHEAD)
def test_whether_queries_look_ahead_is_read_from_the_mask(case: str, dtype: torch.dtype) -> None:
    allowed, ahead = AHEAD[case]
    real = REAL if "padding" in case else None
    assert written(allowed, dtype).looks_ahead(0, real) is ahead
    later = written(allowed[:, :, 3:], dtype)
    assert later.looks_ahead(3, real) is (ahead if case != "prefix" else False), "of later queries alone"


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.bfloat16])
def test_keys_that_no_query_sees_are_padding(dtype: torch.dtype) -> None:
    seen = written((LOWER & REAL[:, None])[:, None], dtype).keys_seen
    assert seen is not None
    assert torch.equal(seen, REAL)
    window = written((LOWER.triu(-1) & REAL[:, None])[:, None], dtype).keys_seen
    assert window is not None
    assert torch.equal(window, REAL), "the last query of a window does not see them all"
    assert written(LOWER[None, None], dtype).keys_seen is None
    assert Rule(SQUARE, causal=True).keys_seen is None
    assert Rule(SQUARE, causal=True, padding=REAL).keys_seen is REAL


def test_what_a_layer_shows_although_it_should_be_hidden() -> None:
    hidden = ~REAL
    careful = written((LOWER & REAL[:, None])[:, None], torch.bool)
    assert written(LOWER[None, None], torch.bool).shows(hidden, 0)
    assert not careful.shows(hidden, 0)
    assert not written(LOWER[None, None], torch.bool).shows(hidden.flip(1), 0), (
        "padding behind all real queries of a causal layer is never seen"
    )
    for causal in (True, False):
        assert Rule(SQUARE, causal).shows(hidden, 0)
        assert Rule(SQUARE, causal).shows(hidden.flip(1), 0) is not causal
        assert not Rule(SQUARE, causal, padding=REAL).shows(hidden, 0)


def test_masks_are_read_once_for_all_layers_that_share_them() -> None:
    masks, mask = WrittenMasks(), LOWER[None, None]
    one = masks.of(mask, SQUARE, SQUARE)
    assert masks.of(mask, SQUARE, SQUARE) is one
    assert masks.of(mask, SQUARE, SQUARE - 1) is not one
    others = [torch.ones(1, 1, SQUARE, SQUARE, dtype=torch.bool) for _ in range(8)]
    assert all(masks.of(other, SQUARE, SQUARE).mask.all() for other in others)
    assert len(masks._known) <= 4, "layers with masks of their own must not keep them all"


def written(allowed: torch.Tensor, dtype: torch.dtype) -> DenseMask:
    """The mask as families write it: booleans, or what is added to scores; some add −10,000."""
    if dtype == torch.bool:
        return DenseMask(allowed)
    least = -1e4 if dtype == torch.bfloat16 else torch.finfo(dtype).min
    return DenseMask(torch.zeros(allowed.shape, dtype=dtype).masked_fill(~allowed, least))


@pytest.mark.parametrize("name", CASES)
def test_blanking_leaves_what_is_seen_and_nothing_else(name: str) -> None:
    """Whatever stands at hidden keys, such as an infinity or a NaN of their exponentials."""
    mask, matrix = CASES[name]
    for rows, columns in ((slice(0, QUERIES), slice(0, KEYS)), (slice(2, 5), slice(1, 9)), (slice(0, 1), slice(4, 6))):
        seen = matrix[:, :, rows, columns].expand(-1, 3, -1, -1)
        for hidden in (7.0, torch.inf, torch.nan):
            values = torch.full(seen.shape, 2.0).masked_fill(~seen, hidden)
            mask.blank(values, slice(0, BATCH), rows, columns)
            assert torch.equal(values, 2.0 * seen)


def test_cross_attention_of_more_queries_than_keys_sees_all_keys() -> None:
    mask, matrix = rule(queries=9, keys=4, causal=False)
    assert bool(matrix.all())
    for start in range(9):
        assert mask.extent(slice(0, BATCH), slice(start, start + 1)) == slice(0, 4)
