"""Keeping freed memory: where it takes effect, a tensor of the same size comes back without new pages."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

CODE = """
import resource
import torch
from sinkscope.training.machine import keep_freed_memory

if {keep}:
    assert keep_freed_memory()
torch.ones(10_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.ones(10_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_freed_tensors_are_reused_without_page_faults():
    def faults(keep: bool) -> int:
        command = [sys.executable, "-c", CODE.format(keep=keep)]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    assert faults(keep=True) * 10 < faults(keep=False)
