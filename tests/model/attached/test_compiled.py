"""Attached models are one graph under `torch.compile`, with the values and gradients of eager mode."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

FEW = {
    "llama": ["llama softmax", "llama sink_logit", "llama softpick", "llama qk_norm", "llama window"],
    "others": [
        "gpt_oss kv_bias",
        "phi3 qk_norm",
        "gemma2 kv_bias",
        "bert kv_bias",
        "vit kv_bias",
        "mixtral gated_value",
        "gpt2 tokens",
    ],
    "decoding": ["llama dynamic", "llama static", "mistral static"],
}


@pytest.mark.slow
@pytest.mark.parametrize("group", FEW)
def test_one_graph_with_equal_values_and_gradients(group: str) -> None:
    """`fullgraph=True`, with padding and without; a process of its own, since shape checks cannot be traced."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.model.attached.compiled", *FEW[group]],
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
        env=os.environ | {"SINKSCOPE_NO_SHAPE_CHECKS": "1"},
    )
    assert done.returncode == 0, done.stderr
    said = [line.removesuffix(" 0 breaks") for line in done.stdout.splitlines()]
    assert {line.removesuffix(" whole").removesuffix(" padded") for line in said} == {*FEW[group]}
