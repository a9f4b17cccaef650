"""Attached models are one graph under `torch.compile`, with the values and gradients of eager mode."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

FEW = {
    "edits": ["llama qk_norm: whole"],  # the only one in CI: queries and keys are changed by hooks
    "llama": [
        "llama sink_logit",
        "llama softmax: whole",
        "llama softpick: padded",
        "llama window: padded",
    ],
    "others": [
        "gpt_oss kv_bias: padded",
        "phi3 qk_norm: whole",
        "gemma2 kv_bias: padded",
        "bert kv_bias: padded",
        "vit kv_bias",
        "mixtral gated_value: padded",
        "gpt2 tokens: whole",
    ],
    "decoding": ["llama dynamic", "llama static", "mistral static"],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "group", [group if group == "edits" else pytest.param(group, marks=pytest.mark.release) for group in FEW]
)
def test_one_graph_with_equal_values_and_gradients(group: str) -> None:
    """`fullgraph=True`, with padding or without; a process of its own, since shape checks cannot be traced."""
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
    found = {line.removesuffix(" whole").removesuffix(" padded") for line in said}
    assert found == {case.partition(": ")[0] for case in FEW[group]}
