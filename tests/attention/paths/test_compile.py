"""Every operation compiles without a break and equals itself uncompiled. In a process without shape checks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from sinkscope.attention import CATALOG
from tests.attention.variants import KINDS

PROGRAM = """
import itertools
import sys
import torch
import sinkscope.attention as zoo

backend, tokens, *names = sys.argv[1:]
tokens, causal = int(tokens), zoo.Causal()
masks = [causal]
if tokens > 5:
    masks = [causal & zoo.Window(100), causal & zoo.Document(), causal | zoo.VisiblePrefix(5)]
for name, mask in zip(names or zoo.CATALOG, itertools.cycle(masks)):
    torch.manual_seed(0)
    torch._dynamo.reset()
    operation = zoo.CATALOG[name].build(heads=2, kv_heads=1, head_dim=4, hidden_size=8)
    inputs = [torch.randn(1, heads, tokens, 4, requires_grad=True) for heads in (2, 1, 1)]
    hidden, upstream = torch.randn(1, tokens, 8), torch.randn(1, 2, tokens, 4)
    documents = torch.arange(tokens)[None] // 77

    def attend(query, key, value):
        query, key = operation.before_rotation(query, key)
        value, carried = operation.before_cache(value, hidden)
        seen = zoo.Visibility.of(mask, tokens, tokens, documents=documents)
        return operation(query, key, value, seen, hidden, carried=carried).output

    def both(run):
        output = run(*inputs)
        return [output, *torch.autograd.grad(output, [*inputs, *operation.parameters()], upstream)]

    compiled = torch.compile(attend, backend=backend, fullgraph=True)
    for one, other in zip(both(compiled), both(attend), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
    print(name)
"""


def compiled(*arguments: str) -> list[str]:
    """Names of the operations that the program went through."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        env=os.environ | {"SINKSCOPE_NO_SHAPE_CHECKS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.split()


@pytest.mark.release
def test_every_kind_of_operation_in_one_graph():
    assert compiled("aot_eager", "5", *sorted(KINDS)) == sorted(KINDS)


@pytest.mark.release
def test_the_rest_of_the_catalog_in_one_graph_each():
    rest = [name for name in CATALOG if name not in KINDS]
    assert compiled("aot_eager", "5", *rest) == rest


@pytest.mark.release
def test_blocks_under_a_mask_are_one_graph():
    """Under a window, documents and a prefix in turn."""
    names = ["softmax", "softmax", "softmax", "sink_logit", "kv_bias", "differential"]
    assert compiled("aot_eager", "600", *names) == names


@pytest.mark.release
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler: there is no g++")
def test_compiled_by_inductor():
    names = ["softmax_off_by_one", "sigmoid_normalized"]
    assert compiled("inductor", "5", *names) == names
