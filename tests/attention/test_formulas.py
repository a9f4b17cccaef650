"""The reference against formulas written a second time, as loops over plain numbers."""

from __future__ import annotations

from itertools import product

import pytest
import torch

import sinkscope.attention as zoo

from .formulas import FORMULAS, Row
from .problems import BORDERS, MASKS_AND_HEADS, Problem, bound, problem
from .variants import VARIANTS, Variant, untried_options

TOKENS = 9


def sees(mask: str, batch: int, query: int, key: int) -> bool:
    """The four masks, in words of their own."""
    if mask == "prefix":
        return key <= query or key < 3
    if mask == "window":
        return query - 5 < key <= query
    if mask == "document":
        return key <= query and not any(key < border <= query for border in BORDERS[batch])
    return key <= query


def row_of(case: Problem, variant: Variant, mask: str, batch: int, head: int, place: int) -> Row:
    """The numbers that belong to one query."""
    kv_heads = case.key.shape[1]
    group = head // (case.query.shape[1] // kv_heads)
    keys = [k for k in range(case.key.shape[2]) if sees(mask, batch, place, k)]
    began = max((b for b in BORDERS[batch] if b <= place), default=0) if mask == "document" else 0
    hidden = case.hidden[batch].tolist()
    return Row(
        query=case.query[batch, head, place].tolist(),
        own=case.value[batch, group, place].tolist(),
        keys=case.key[batch, group, keys].tolist(),
        values=case.value[batch, group, keys].tolist(),
        place=place - began,
        places=[k - began for k in keys],
        x=hidden[place],
        xs=[hidden[k] for k in keys],
        between=[hidden[min(k, place) + 1 : max(k, place) + 1] for k in keys],
        head=head,
        heads=case.query.shape[1],
        group=group,
        kv_heads=kv_heads,
        p={name: parameter.tolist() for name, parameter in case.parameters.items()},
        o=variant.chosen,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "mask", "kv_heads"),
    [(variant, *mask_and_heads) for variant, mask_and_heads in product(VARIANTS, MASKS_AND_HEADS)],
    ids=str,
)
def test_reference_is_the_formula(variant, mask, kv_heads):
    case = problem(variant.spec, tokens=TOKENS, kv_heads=kv_heads, dtype=torch.float64)
    output = case.attend(mask=bound(mask, TOKENS), path="reference").output
    for batch, head, place in [(0, 0, 0), (1, 3, 8), (0, 2, 5), (1, 1, 6), (0, 3, 1)]:
        expected = FORMULAS[variant.name](row_of(case, variant, mask, batch, head, place))
        found = output[batch, head, place].detach()
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), atol=1e-6, rtol=1e-6)


def test_every_line_of_the_catalogue_has_its_formula():
    assert set(FORMULAS) == set(zoo.ENTRIES), "add the line to formulas.py"


def test_every_option_of_the_catalogue_is_tried():
    assert untried_options() == set(), "add the option to variants.py"
