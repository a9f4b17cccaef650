"""Commands on a device that is not the processor: tensors that were left there would raise on a GPU."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

FEW = "--tokens 48 --samples 2 --controls 1"
COMMANDS = {
    "intervene": f"intervene nano {FEW} --what hide-sink",
    "round": f"quantize nano {FEW} --scheme w8a8-static,w8a8-tensor-rotated",
}
MORE = {
    "stream": f"cache nano {FEW} --budget 50% --compare llama.cpp,streaming-cache",
    "measure": "measure nano --tokens 48 --samples 4 --observers all",
    "evict": f"cache nano {FEW} --budget 75% --compare h2o,snapkv,keydiff,fastgen",
    "engines": "cache nano --tokens 96 --samples 2 --controls 1 --budget 25% --compare mlx,executorch",
    "recall": "cache nano-recall --samples 4 --task recall --budget 25%",
    "weights": f"quantize nano {FEW} --scheme w4,w4-gptq",
    "export": f"quantize nano {FEW} --scheme w8a8-tensor-rotated",
}


@pytest.mark.parametrize(
    "command",
    [
        *(pytest.param(each, id=name, marks=pytest.mark.slow) for name, each in COMMANDS.items()),
        *(pytest.param(each, id=name, marks=pytest.mark.release) for name, each in MORE.items()),
    ],
)
def test_a_command_leaves_no_tensor_on_the_processor(command, tmp_path):
    # A process of its own: a device, once registered, stays.
    command = (*command.split(), "--device", "far", "--json", "--out", str(tmp_path / "out"))
    ran = subprocess.run((sys.executable, "-m", "tests.far", *command), capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert ran.stdout.startswith("{")


ACROSS = "Expected all tensors to be on the same device"
CODE = {
    "x + torch.ones(3, 4)": ACROSS,
    "x.gather(1, torch.zeros(3, 1, dtype=torch.long))": ACROSS,
    "x[torch.tensor([0, 2])] * torch.tensor(2.0)": "",
    "greedy_rotation(x, 4, 3, torch.Generator().manual_seed(0)); x[:, zigzag(x, 4)]": "",
}
EACH = """
import json, sys
import torch
from sinkscope.quantization.linear.duquant import greedy_rotation, zigzag
from tests.far import Elsewhere, device

def said(code):
    x = torch.rand(3, 4, device=device(), dtype=torch.float64)
    try:
        exec(code)
    except RuntimeError as error:
        return str(error)
    return ""

with Elsewhere():
    print(json.dumps([said(code) for code in json.loads(sys.argv[1])]))
"""


@pytest.mark.slow
def test_the_device_refuses_what_a_gpu_refuses():
    command = (sys.executable, "-c", EACH, json.dumps(list(CODE)))
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr[-2000:]
    said = [ACROSS if ACROSS in each else each for each in json.loads(ran.stdout)]
    assert dict(zip(CODE, said, strict=True)) == CODE
