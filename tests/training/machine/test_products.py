"""Compiled products of matrices are oneDNN's where MKL would take half of the processor, and the same to rounding."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sinkscope.training.machine import products

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch has no oneDNN here")

ROOT = Path(__file__).parents[3]
MADE = "sinkscope.wide_product.default"


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 5, 7), (257, 63, 129), (4096, 33, 31), (31, 1025, 300)])
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
def test_a_product_is_that_of_float64(sizes, turned):
    rows, inner, columns = sizes
    draw = torch.Generator().manual_seed(0)
    left = torch.randn(inner, rows, generator=draw).t() if turned[0] else torch.randn(rows, inner, generator=draw)
    right = (
        torch.randn(columns, inner, generator=draw).t() if turned[1] else torch.randn(inner, columns, generator=draw)
    )
    ours = products.wide_product(left, right)
    exact = left.double() @ right.double()
    bound = 2**-23 * inner * (left.double().abs() @ right.double().abs()).max()
    assert ours.shape == exact.shape
    assert ours.is_contiguous()
    assert (ours - exact).abs().max() <= bound


@pytest.mark.parametrize(
    ("cpu", "capability", "narrowed"),
    [
        ("vendor_id\t: AuthenticAMD\n", "AVX512", True),
        ("vendor_id\t: AuthenticAMD\n", "AVX2", False),
        ("processor\t: 0\nvendor_id\t: GenuineIntel\n", "AVX512", False),
        ("Features : fp asimd\n", "AVX512", False),
        (None, "AVX512", False),
    ],
)
def test_only_wide_processors_that_mkl_does_not_know_are_narrowed(cpu, capability, narrowed, tmp_path, monkeypatch):
    if cpu is not None:
        (tmp_path / "cpuinfo").write_text(cpu)
    monkeypatch.setattr(products, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert products.narrowed_by_mkl() is narrowed
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert not products.narrowed_by_mkl()


class Products(torch.nn.Module):
    """Products that are replaced, and some that are left: small ones and those of halves."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = torch.nn.Linear(96, 400, bias=False)
        self.biased = torch.nn.Linear(400, 63)
        self.small = torch.nn.Linear(63, 3)

    def forward(self, x):
        hidden = self.biased(torch.tanh(self.wide(x)))
        half = hidden.bfloat16() @ self.wide.weight[:, :63].T.bfloat16()
        return self.small(hidden).square().sum() + half.float().mean()


def test_graphs_have_their_large_fp32_products_replaced():
    from torch.fx.experimental.proxy_tensor import make_fx

    torch.manual_seed(0)
    model, x = Products(), torch.randn(301, 96)
    names = list(dict(model.named_parameters()))

    def gradients(x, *parameters):
        value = torch.func.functional_call(model, dict(zip(names, parameters, strict=True)), (x,))
        return value, *torch.autograd.grad(value, parameters)

    traced = make_fx(gradients, decomposition_table={})(x, *model.parameters())
    before = traced(x, *model.parameters())
    replaced = products.widen(traced.graph)
    traced.graph.lint()
    traced.recompile()
    targets = [str(node.target) for node in traced.graph.nodes]
    assert replaced == targets.count(MADE) == 5  # two layers forward, two weights' gradients, one input's
    assert targets.count("aten.addmm.default") == 1
    assert "aten.mm.default" in targets
    for ours, theirs in zip(traced(x, *model.parameters()), before, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-5)


def test_a_scaled_sum_is_left_alone():
    from torch.fx.experimental.proxy_tensor import make_fx

    bias, left, right = torch.randn(200), torch.randn(300, 100), torch.randn(100, 200)
    traced = make_fx(lambda *of: torch.addmm(*of, alpha=2))(bias, left, right)
    assert products.widen(traced.graph) == 0
    torch.testing.assert_close(traced(bias, left, right), bias + 2 * left @ right, rtol=1e-4, atol=1e-4)


COMPILED = """
import torch
from sinkscope.model import LabConfig, LabForCausalLM
from sinkscope.training.machine import products

calls, made = [], products.widen
def counted(graph):
    calls.append(made(graph))
    return calls[-1]
products.widen = counted
products.narrowed_by_mkl = lambda: True
sizes = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4, vocab_size=300)
torch.manual_seed(0)
model = LabForCausalLM(LabConfig(**sizes))
ids = torch.randint(0, 300, (5, 61))
model(input_ids=ids, labels=ids).loss.backward()
expected = [one.grad.clone() for one in model.parameters()]
model.zero_grad()
with products.wide_products():
    torch.compile(model)(input_ids=ids, labels=ids).loss.backward()
apart = [
    float((one.grad - other).abs().max() / other.abs().max()) for one, other in zip(model.parameters(), expected)
]
print(sum(calls), max(apart))
"""


@pytest.mark.slow
def test_a_compiled_model_has_the_same_gradients(tmp_path: Path) -> None:
    """In a process of its own, as shape checks and compilation do not go together; cached graphs run no pass."""
    uncached = {"TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0", "PYTHONPATH": str(ROOT)}
    command, environment = [sys.executable, "-c", COMPILED], os.environ | uncached
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    replaced, worst = done.stdout.split()[-2:]
    assert int(replaced) == 3 * 8  # seven of a layer and the logits, thrice
    assert float(worst) < 1e-4


@pytest.mark.parametrize("narrowed", [True, False])
def test_only_there_graphs_pass_through(narrowed, monkeypatch):
    from torch._inductor import config

    monkeypatch.setattr(products, "narrowed_by_mkl", lambda: narrowed)
    with products.wide_products():
        assert (config.post_grad_custom_post_pass is not None) is narrowed
    assert config.post_grad_custom_post_pass is None
