"""What the fused kernels can compute, and what is compared."""

from __future__ import annotations

import pytest
import torch

from sinkscope.attention import CATALOG, Causal, Document, Full, VisiblePrefix, Window
from sinkscope.attention.kernels import KernelPlan, every, fused, plan_of
from sinkscope.attention.kernels.comparison import FAMILY, LIMITS, _FreshMemoryIsNan
from sinkscope.attention.normalizers import Sigmoid, Softmax, Softpick
from sinkscope.errors import InputError


def test_the_family_and_nothing_else_has_a_plan() -> None:
    family = {"sigmoid", "sigmoid_normalized", "sigmoid_bias", "elu", "elu_normalized", "relu", "softpick"}
    planned = {name for name, spec in CATALOG.items() if plan_of(spec.normalizer, spec.mask)}
    assert planned == family
    assert len({plan_of(normalizer, Causal()) for normalizer in FAMILY}) == len(FAMILY) == 11
    assert plan_of(Sigmoid(bias=1.0), Causal()) is None
    assert plan_of(Softpick(epsilon=1e-6), Causal()) is None
    assert plan_of(Softmax(), Causal()) is None


def test_masks_have_a_plan_where_they_are_causal_windowed_or_full() -> None:
    assert plan_of(Sigmoid(), Window(7) & Causal()) == plan_of(Sigmoid(), Causal() & Window(7))
    assert plan_of(Sigmoid(), Causal() & Window(7)) == KernelPlan("sigmoid", window=7)
    assert plan_of(Sigmoid(normalized=True), Full()) == KernelPlan("sigmoid", True, "full")
    for mask in (Window(7), Causal() | VisiblePrefix(3), Causal() & Document(), Causal() & Window(7) & Window(3)):
        assert plan_of(Sigmoid(), mask) is None


def test_everything_that_is_compared_has_a_plan_and_meets_every_weight() -> None:
    listed = list(every())
    cases = [case for what in listed for case in what.cases()]
    assert all(plan_of(case.normalizer, case.mask) for case in cases)
    assert len({(str(case), case.dtype) for case in cases}) == len(cases)
    assert {what.normalizer for what in listed if what.dtype == torch.bfloat16} == set(FAMILY)
    assert {what.bidirectional for what in listed} == {False, True}
    assert {case.dtype for case in cases} == set(LIMITS)
    for what in listed:
        assert {(case.dtype, case.dim, case.value_dim) for case in what.cases()} == {
            (what.dtype, what.dim, what.value_dim)
        }


def test_on_a_cpu_without_interpreter_fused_refuses() -> None:
    q = torch.zeros(1, 2, 5, 4)
    with pytest.raises(InputError, match=r"triton is not installed|TRITON_INTERPRET"):
        fused(q, q, q, "sigmoid")


def test_memory_that_a_kernel_leaves_unwritten_is_nan_in_a_comparison() -> None:
    like, whole = torch.ones(3, 5), torch.ones(3, 5, dtype=torch.int64)
    with _FreshMemoryIsNan():
        made = torch.empty_like(like), like.new_empty(7), like.new_empty(7, dtype=torch.bfloat16)
        written, counts = like + like, torch.empty_like(whole)
    assert all(bool(each.isnan().all()) for each in made)
    assert bool((written == 2).all())
    assert counts.dtype == torch.int64
