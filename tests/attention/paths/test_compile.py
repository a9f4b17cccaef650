"""Every operation compiles without a break and equals itself uncompiled."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import Tensor

import sinkscope.attention as zoo
from sinkscope.attention import CATALOG
from sinkscope.attention.masks import Mask
from tests.shapes import unchecked

pytestmark = [pytest.mark.slow, unchecked, pytest.mark.filterwarnings("ignore")]  # the compiler's own
CAUSAL = zoo.Causal()
FEW = ("sink_logit", "kv_bias", "softpick", "gated_value", "forgetting_gate", "exclusive")
REST = [pytest.param(name, marks=pytest.mark.release) for name in CATALOG if name not in FEW]


def assert_compiles(name: str, backend: str = "aot_eager", tokens: int = 5, mask: Mask = CAUSAL) -> None:
    torch._dynamo.reset()
    operation = CATALOG[name].build(heads=2, kv_heads=1, head_dim=4, hidden_size=8)
    inputs = [torch.randn(1, heads, tokens, 4, requires_grad=True) for heads in (2, 1, 1)]
    hidden, upstream = torch.randn(1, tokens, 8), torch.randn(1, 2, tokens, 4)
    documents = torch.arange(tokens)[None] // 77

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key = operation.before_rotation(query, key)
        value, carried = operation.before_cache(value, hidden)
        seen = zoo.Visibility.of(mask, tokens, tokens, documents=documents)
        return operation(query, key, value, seen, hidden, carried=carried).output

    compiled = torch.compile(attend, backend=backend, fullgraph=True)
    found, expected = (
        [output, *torch.autograd.grad(output, [*inputs, *operation.parameters()], upstream)]
        for output in (compiled(*inputs), attend(*inputs))
    )
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", [*FEW, *REST])
def test_an_operation_is_one_graph(name: str) -> None:
    assert_compiles(name)


@pytest.mark.parametrize(
    ("name", "mask"),
    [
        ("softmax", CAUSAL & zoo.Window(100)),
        pytest.param("softmax", CAUSAL & zoo.Document(), marks=pytest.mark.release),
        pytest.param("softmax", CAUSAL | zoo.VisiblePrefix(5), marks=pytest.mark.release),
        pytest.param("sink_logit", CAUSAL & zoo.Window(100), marks=pytest.mark.release),
        pytest.param("kv_bias", CAUSAL & zoo.Document(), marks=pytest.mark.release),
        pytest.param("differential", CAUSAL | zoo.VisiblePrefix(5), marks=pytest.mark.release),
    ],
    ids=str,
)
def test_blocks_under_a_mask_are_one_graph(name: str, mask: Mask) -> None:
    assert_compiles(name, tokens=600, mask=mask)


@pytest.mark.release
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler: there is no g++")
@pytest.mark.parametrize("name", ["softmax_off_by_one", "sigmoid_normalized"])
def test_compiled_by_inductor(name: str) -> None:
    assert_compiles(name, backend="inductor")
