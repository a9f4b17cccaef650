"""What the catalog claims about the sum of a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import pytest
import torch
from torch import Tensor

import sinkscope.attention as zoo

from .problems import MASKS, bound, problem
from .variants import VARIANTS, Variant

SLACK = 1e-5


@dataclass(frozen=True)
class Sums:
    """Sums of rows over tokens and over slots, how many tokens each row sees, and the line's options."""

    tokens: Tensor
    slots: Tensor
    n: Tensor
    options: dict
    factor: float | None

    @property
    def all(self) -> Tensor:
        return self.tokens + self.slots


def equal(found: Tensor, expected: object) -> bool:
    return bool(((found - expected).abs() < SLACK).all())


def between(low: object, found: Tensor, high: object) -> bool:
    return bool((found >= low - SLACK).all() and (found <= high + SLACK).all())


def power_bounds(sums: Sums) -> bool:
    if (p := sums.options["p"]) <= 1:
        return between(0, sums.tokens, 1)
    return between(1, sums.tokens, sums.n ** (1 - 1 / p))


CLAIMS: dict[str, Callable[[Sums], bool]] = {
    "tokens sum to 1": lambda s: equal(s.tokens, 1),
    "tokens sum to α": lambda s: equal(s.tokens, s.options["alpha"]),
    "at most 1 for p ≤ 1; from 1 to n^(1−1/p) for p ≥ 1": power_bounds,
    "tokens sum to less than 1; the rest goes to a slot without a value": (
        lambda s: equal(s.all, 1) and bool((s.tokens < 1).all() and (s.slots > 0).all())
    ),
    "from 0 to ζ": lambda s: between(0, s.tokens, s.options["zeta"]),
    "at most 1": lambda s: between(0, s.tokens, 1),
    "tokens sum to at most 1": lambda s: between(0, s.tokens, 1) and bool((s.tokens < 0.999).any()),
    "tokens sum to less than 1, more for later queries; 1 for the last position": (
        lambda s: equal(s.all, 1) and bool((s.tokens < 1).all())  # the rest in test_slots.py
    ),
    "anything between 0 and the number of visible tokens": lambda s: between(0, s.tokens, s.n),
    "n / (1 + n) for zero scores": lambda s: between(0, s.tokens, s.n),  # the claim itself in test_normalizers.py
    "any positive number": lambda s: bool((s.tokens > 0).all() and (s.tokens > 1).any()),
    "any number from 0": lambda s: bool((s.tokens >= 0).all()),
    "any number, also negative": lambda s: bool((s.tokens < 0).any() and (s.tokens.abs() > 1).any()),
    "from −1 to 1": lambda s: between(-1, s.tokens, 1) and bool((s.tokens < 0).any()),
    "slots and tokens sum to 1": lambda s: equal(s.all, 1) and bool((s.tokens < 1).all()),
    "slot and tokens sum to 1": lambda s: equal(s.all, 1) and bool((s.tokens < 1).all()),
    "slot and tokens sum to 1; the slot carries no value": lambda s: equal(s.all, 1) and bool((s.tokens < 1).all()),
    "tokens sum to 1 − λ": lambda s: equal(s.tokens, 1 - s.factor),
}


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "mask"), list(product(VARIANTS, MASKS)), ids=str)
def test_rows_sum_to_what_is_claimed(variant: Variant, mask: str):
    case = problem(variant.spec, tokens=24)
    visibility = bound(mask, 24)
    attended = case.attend(mask=visibility, path="reference")
    difference = case.built().difference
    sums = Sums(
        attended.weights.sum(-1),
        attended.slot_weights.sum(-1),
        visibility.dense().sum(-1).expand(2, 4, -1),
        variant.chosen,
        None if difference is None else difference.factor().item(),
    )
    claim = zoo.ENTRIES[variant.name].rows
    assert claim in CLAIMS, "say in CLAIMS how to check this"
    assert CLAIMS[claim](sums)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_metric_weights_are_raw_where_mass_goes_to_a_slot_or_is_dropped(variant: Variant):
    """Design: renormalised only where rows are not a share of one: element-wise, kernels, α, p, a difference."""
    softmaxes = {"softmax", "clipped_softmax", "softpick", "stick_breaking", "entmax"}
    raw = variant.spec.normalizer.kind in softmaxes and variant.spec.difference is None
    assert variant.spec.metric_weights == ("raw" if raw else "renormalized")


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_log_sum_exp_gives_the_weights_where_there_is_one(variant: Variant):
    """A = exp(s − lse), with s the scores that the observers can compute themselves."""
    case = problem(variant.spec, tokens=6)
    attended = case.attend(path="reference")
    if variant.spec.normalizer.kind != "softmax" or variant.spec.difference is not None:
        assert attended.lse is None
        return
    assert torch.isfinite(attended.lse).all()
    if variant.spec.is_plain_softmax:
        query, key = case.built().before_rotation(case.query, case.key)
        scores = query @ key.repeat_interleave(2, 1).transpose(-1, -2) / 8**0.5
        expected = (scores - attended.lse[..., None]).exp().tril()
        torch.testing.assert_close(attended.weights, expected)
