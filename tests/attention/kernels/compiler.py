"""The kernels through Triton's compiler, down to machine code, for devices that need not be here.

Run: python -m tests.attention.kernels.compiler, prints JSON: shared memory and size of code of each.
"""

from __future__ import annotations

import json
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from sinkscope.attention.kernels.launch import backward_tiling, forward_tiling, settings
from sinkscope.attention.kernels.passes import forward_kernel, key_kernel, query_kernel
from sinkscope.attention.kernels.plan import KernelPlan

POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}
STATE = ("denominator", "shift", "delta")  # fp32 whatever the dtype


def compiled(kernel: Any, plan: KernelPlan, dtype: torch.dtype, dim: int, capability: int) -> dict[str, object]:
    tensor = torch.empty(1, 4, 64, dim, device="meta", dtype=dtype)
    tiling = (forward_tiling if kernel is forward_kernel else backward_tiling)(dim, dtype.itemsize)
    values = settings(tensor, tensor, tensor, plan, 1.0, tiling)
    constants = {one.name: values[one.name] for one in kernel.params if one.is_constexpr}
    kinds = {"group": "i32", "queries": "i32", "keys": "i32", "window": "i32", "scaling": "fp32"}
    signature: dict[str, object] = {}
    for one in kernel.params:
        if one.is_constexpr:
            signature[one.name] = "constexpr"
        elif one.name.endswith("_strides"):
            signature[one.name] = ("i32", "i32", "i32")
        else:
            signature[one.name] = kinds.get(one.name, "*fp32" if one.name in STATE else POINTERS[dtype])
    options = {"num_warps": tiling.warps, "num_stages": tiling.stages}
    source = ASTSource(kernel, signature, constants)
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    what = f"{kernel.fn.__name__} {plan} {dtype} {dim} sm_{capability}"
    return {"what": what, "shared": made.metadata.shared, "bytes": len(made.asm["cubin"])}


def main() -> None:
    problems = [
        (KernelPlan("softpick"), torch.bfloat16, 64, 90),
        (KernelPlan("elu", normalized=True, mask="full"), torch.float16, 64, 80),
        (KernelPlan("sigmoid_minus_log_n", window=9), torch.float32, 20, 80),
    ]
    kernels = (forward_kernel, query_kernel, key_kernel)
    print(json.dumps({"compiled": [compiled(kernel, *problem) for problem in problems for kernel in kernels]}))


if __name__ == "__main__":
    main()
