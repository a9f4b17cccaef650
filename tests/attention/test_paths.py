"""The ways to compute an operation agree with the reference, in values and in all gradients."""

from __future__ import annotations

import contextlib
from itertools import product
from typing import get_args

import pytest
import torch

import sinkscope.attention as zoo
from sinkscope.attention.operation import Path, chosen
from sinkscope.attention.paths import chunked, sdpa
from sinkscope.errors import InputError

from .problems import assert_close, assert_paths_agree, bound, problem
from .variants import KINDS, MASKED, VARIANTS

SEVERAL_CHUNKS = 300
SEVERAL_SMALL = 45  # several `small_blocks` of each path


def paths(spec: zoo.AttentionSpec, tokens: int = 8) -> list[str]:
    """Every path that does not refuse this operation, but for the reference and fused kernels (tests of their own)."""
    offered = []
    for path in get_args(Path):
        with contextlib.suppress(InputError):
            chosen(spec, path, tokens)
            offered.append(path)
    return [path for path in offered if path not in ("auto", "reference", "fused")]


@pytest.mark.slow
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(("variant", "mask", "kv_heads"), MASKED, ids=str)
def test_paths_agree(variant, mask, kv_heads):
    for length in (1, 7, SEVERAL_SMALL):  # with borders of documents inside blocks
        case = problem(variant.spec, tokens=length, kv_heads=kv_heads)
        assert_paths_agree(case, paths(variant.spec), mask=bound(mask, length))


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_paths_agree_in_blocks_of_the_size_in_use(name):
    spec = zoo.CATALOG[name]
    assert chunked.rows_of(SEVERAL_CHUNKS) < SEVERAL_CHUNKS
    case = problem(spec, tokens=SEVERAL_CHUNKS, kv_heads=2)
    tolerance = 5e-5  # longer sums, and denominators nearer to zero
    assert_paths_agree(case, paths(spec), tolerance, mask=bound("document", SEVERAL_CHUNKS))


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "mask"), list(product(VARIANTS, ["causal", "window"])), ids=str)
def test_fewer_queries_than_keys_are_the_last_ones(variant, mask):
    case = problem(variant.spec, tokens=9)
    whole = case.attend(mask=bound(mask, 9), path="reference").output
    for queries in (1, 4):
        for path in ("reference", *paths(case.spec)):
            found = case.last(queries).attend(mask=bound(mask, 9, queries), path=path).output
            assert_close(found, whole[:, :, -queries:])


def test_every_operation_has_a_fast_and_a_chunked_path(variant):
    assert {"fast", "chunked"} <= set(paths(variant.spec))


def test_sdpa_where_it_is_not_exact_is_refused(spec):
    case = problem(spec, tokens=3)
    if (reason := sdpa.obstacle(spec)) is None:
        assert_close(case.attend(path="sdpa").output, case.attend(path="reference").output)
        return
    with pytest.raises(InputError, match="no exact SDPA path") as caught:
        case.attend(path="sdpa")
    assert reason in str(caught.value)


def test_explain_says_what_attend_does(spec):
    for queries in (8, SEVERAL_CHUNKS):
        told = zoo.explain(spec, torch.zeros(1, 4, queries, 8))
        has_weights = problem(spec, tokens=queries, batch=1).attend().weights is not None
        assert [told.path == "reference", told.kernel == "reference"] == [has_weights] * 2


class Slope:
    """A position bias that falls with the distance."""

    def rows(self, rows: slice) -> torch.Tensor:
        places = torch.arange(SEVERAL_SMALL, dtype=torch.float32)
        return (places[None, :] - places[rows, None]).mul(0.1).expand(1, 4, -1, -1)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("spec", [zoo.CATALOG[name] for name in KINDS], ids=KINDS)
def test_a_position_bias_in_chunks_is_the_bias_at_once(spec):
    case = problem(spec, tokens=SEVERAL_SMALL)
    plain = case.attend(path="reference").output
    assert_paths_agree(case, ["fast"], bias=Slope())
    assert not torch.allclose(case.attend(path="reference", bias=Slope()).output, plain)
    with pytest.raises(InputError, match="position bias"):
        problem(zoo.CATALOG["softmax"], tokens=SEVERAL_SMALL).attend(path="sdpa", bias=Slope())


def test_nothing_is_drawn_from_the_callers_random_state():
    case = problem(zoo.CATALOG["kv_bias"], tokens=3)
    before = torch.get_rng_state()
    case.attend()
    assert torch.equal(torch.get_rng_state(), before)
