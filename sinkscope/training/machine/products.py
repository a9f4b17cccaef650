"""Products of fp32 matrices that a processor makes at its full width, in the graphs that `torch.compile` makes.

PyTorch hands them to MKL, which uses AVX-512 on Intel's processors alone. oneDNN, which PyTorch carries too, asks what
the processor can do and not who made it: on an AMD Zen 5, in one thread, it made 220 billion operations a second where
MKL made 95. Both compute in fp32; they add in another order, so numbers differ by rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.fx import Graph, Node

aten = torch.ops.aten
CPUINFO = Path("/proc/cpuinfo")
SMALLEST = 2**20  # multiplications; what is smaller is over before oneDNN has looked up how to do it
SCALES = ("alpha", "beta")  # of addmm: factors of the product and of what is added


def narrowed_by_mkl() -> bool:
    """Whether MKL multiplies with half of this processor's width, and oneDNN is there to do better."""
    return (
        torch.backends.mkl.is_available()
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")  # not promised by PyTorch: without it, all is as it was
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and _maker() not in ("", "GenuineIntel")
    )


def _maker() -> str:
    """Of this machine's processor, as it says itself; empty where it cannot be asked."""
    try:
        lines = CPUINFO.read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")


@torch.library.custom_op("sinkscope::wide_product", mutates_args=())
def wide_product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right of (m, k) and (k, n) in fp32, by oneDNN."""
    return torch.ops.mkldnn._linear_pointwise(left, right.t(), None, "none", [], "")


@wide_product.register_fake
def _(left: Tensor, right: Tensor) -> Tensor:
    return left.new_empty(left.shape[0], right.shape[1])


@contextmanager
def wide_products() -> Iterator[None]:
    """What is compiled meanwhile has its larger products of fp32 matrices made by `wide_product`, if that is faster."""
    if not narrowed_by_mkl():
        yield
        return
    from torch._inductor import config  # slow to import, and only compiling needs it
    from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

    class Widened(CustomGraphPass):
        def __call__(self, graph: Graph) -> None:
            widen(graph)

        def uuid(self) -> bytes:  # compiled graphs are kept on disk, by this too
            return get_hash_for_files((__file__,))

    with config.patch(post_grad_custom_post_pass=Widened()):
        yield


def widen(graph: Graph) -> int:
    """Replace the products of fp32 matrices in a graph that is about to be compiled; how many were."""
    found = [node for node in graph.nodes if node.op == "call_function" and _worth(node)]
    for node in found:
        *added, left, right = node.args
        with graph.inserting_before(node):
            new = _widened(graph, left, right, node.meta["val"])
            if added:
                new = graph.call_function(aten.add.Tensor, (new, *added))
        new.meta.update(node.meta)
        node.replace_all_uses_with(new)
        graph.erase_node(node)
    return len(found)


def _widened(graph: Graph, left: Node, right: Node, value: Tensor) -> Node:
    if value.shape[0] >= value.shape[1]:
        made = graph.call_function(torch.ops.sinkscope.wide_product.default, (left, right))
        made.meta["val"] = value
        return made
    # oneDNN is made for many rows by few weights: (left right)^T = right^T left^T
    turned = graph.call_function(
        torch.ops.sinkscope.wide_product.default, (_turned(graph, right), _turned(graph, left))
    )
    turned.meta["val"] = value.t().contiguous()
    return _turned(graph, turned)


def _turned(graph: Graph, node: Node) -> Node:
    new = graph.call_function(aten.permute.default, (node, [1, 0]))
    new.meta["val"] = node.meta["val"].t()
    return new


def _worth(node: Node) -> bool:
    """Whether this is left @ right, or added + left @ right, of fp32 matrices on a CPU, and large."""
    if node.target not in (aten.mm.default, aten.addmm.default) or any(node.kwargs.get(of, 1) != 1 for of in SCALES):
        return False
    left, right = (one.meta["val"] for one in node.args[-2:])
    sizes = (*left.shape, right.shape[1])
    return (
        left.device.type == "cpu"
        and left.dtype == right.dtype == torch.float32
        and all(isinstance(size, int) for size in sizes)
        and math.prod(sizes) >= SMALLEST
    )
