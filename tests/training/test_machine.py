"""`precision` and `compile` do what they say on every machine, or a line says that they cannot."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sinkscope.errors import InputError
from sinkscope.training import Recipe, Run
from sinkscope.training.distributed.processes import Processes, joined, uses_sharding
from sinkscope.training.machine import check_machine, compiling, resolved_device, unchanged_matmuls
from tests.training.helpers import killed_at

Make = Callable[..., Recipe]


def test_bf16_that_a_gpu_would_only_emulate_is_refused(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *ignored: "Old GPU")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    with pytest.raises(InputError, match=r"Old GPU cannot compute in bf16.*precision=fp32"):
        check_machine(tiny("precision=bf16"), "auto")
    check_machine(tiny("precision=bf16"), "cpu")
    check_machine(tiny(), "auto")


def test_a_launcher_that_would_compile_is_refused(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR")
    with pytest.raises(InputError, match="launcher asks for compilation"):
        check_machine(tiny(), "cpu")
    check_machine(tiny("compile=true"), "cpu")
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "no")
    check_machine(tiny(), "cpu")


def test_auto_is_the_cpu_where_there_is_no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert resolved_device("auto") == "cpu"
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert resolved_device("auto") == "auto"
    assert resolved_device("cpu") == "cpu"
    with pytest.raises(InputError, match="unknown device 'cuda'"):
        resolved_device("cuda")


def test_only_failures_to_compile_are_put_into_words(tiny: Make) -> None:
    from torch._dynamo.exc import TorchDynamoException

    said = r"cannot compile the recipe's model \(no g\+\+\): install a C\+\+ compiler"
    with pytest.raises(InputError, match=said), compiling(tiny("compile=true")):
        raise TorchDynamoException("no g++\nand so on")
    with pytest.raises(RuntimeError, match="other"), compiling(tiny("compile=true")):
        raise RuntimeError("other")


def test_products_keep_their_precision() -> None:
    with unchanged_matmuls():
        torch.backends.fp32_precision = "tf32"
        torch.backends.cuda.matmul.allow_tf32 = True
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.backends.cuda.matmul.allow_tf32
    assert torch.backends.fp32_precision == "none"


def test_alone_everything_is_a_plain_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    alone = joined("cpu")
    assert alone == Processes(rank=0, world=1, launched=False)
    assert alone.together(lambda: 3) == alone.from_main(lambda: 3) == 3
    error = InputError("no")
    assert alone.reported_once(error) is error
    with pytest.raises(RuntimeError, match="closed by peer"), alone.ending_together():
        raise RuntimeError("Connection closed by peer")


@pytest.mark.parametrize(
    ("parallel", "launcher", "device", "processes", "said"),
    [
        ("fdsp", "false", "auto", Processes(launched=True), "unknown parallel 'fdsp': did you mean 'fsdp'"),
        ("fsdp", "false", "auto", Processes(), "needs several processes: start them with torchrun"),
        ("fsdp", "false", "cpu", Processes(launched=True), "over GPUs only: on CPUs use parallel 'ddp'"),
        ("auto", "true", "cpu", Processes(launched=True), "over GPUs only"),
        ("ddp", "true", "auto", Processes(launched=True), "the launcher is configured for FSDP"),
    ],
)
def test_what_cannot_be_sharded(
    parallel: str, launcher: str, device: str, processes: Processes, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", launcher)
    with pytest.raises(InputError, match=said):
        uses_sharding(parallel, device, processes)


def test_what_is_sharded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACCELERATE_USE_FSDP", raising=False)
    assert uses_sharding("fsdp", "auto", Processes(launched=True))
    assert not uses_sharding("auto", "auto", Processes(launched=True))
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    assert uses_sharding("auto", "auto", Processes(launched=True))


@pytest.mark.release
def test_compiling_without_a_compiler_is_one_line(tiny: Make, tmp_path: Path) -> None:
    """In a process of its own: shape checks and compilation do not go together."""
    recipe = tmp_path / "tiny.json"
    recipe.write_text(json.dumps(tiny("compile=true").model_dump(mode="json")))
    environment = os.environ | {
        "SINKSCOPE_NO_SHAPE_CHECKS": "1",
        "CXX": str(tmp_path / "no-compiler"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": str(Path(__file__).parents[3]),
    }
    command = [sys.executable, "-m", "sinkscope", "train", str(recipe), "--out", str(tmp_path / "runs")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 2, done.stderr[-3000:]
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert "this machine cannot compile the recipe's model" in lines[0]
    assert "Traceback" not in done.stderr
    (record,) = (tmp_path / "runs").rglob("record.json")
    assert json.loads(record.read_text())["status"] == "failed"


@pytest.mark.release
@pytest.mark.parametrize("killed", [False, True])
def test_a_compiled_run_is_the_same_run(
    killed: bool, undisturbed: Run, tiny: Make, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To rounding; also where it goes on with one that was not compiled, which its notes tell."""
    if killed:
        killed_at(7, tiny(), runs, monkeypatch)
    recipe = runs.parent / "compiled.json"
    recipe.write_text(json.dumps(tiny("compile=true").model_dump(mode="json")))
    environment = os.environ | {"SINKSCOPE_NO_SHAPE_CHECKS": "1", "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-m", "sinkscope", "train", str(recipe), "--out", str(runs), "--resume"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    (folder,) = runs.iterdir()
    run = Run(folder)
    assert folder.name == undisturbed.path.name
    assert run.record["host"]["compiled"]
    assert "compiled" not in undisturbed.record["host"]
    assert run.record["notes"] == (["resumed from checkpoint-5", "compiled from here on"] if killed else [])
    for name in ("loss", "validation_loss", "sink/mass"):
        assert run.log[name].dropna().tolist() == pytest.approx(undisturbed.log[name].dropna().tolist(), abs=1e-4)


ALLOCATING = """
import resource
import torch
from sinkscope.model.memory import keep_freed_memory

def faults():
    torch.ones(10_000_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(10_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

given_back = faults()
assert keep_freed_memory()
print(given_back, faults())
"""


@pytest.mark.release
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_freed_tensors_are_reused_without_page_faults():
    done = subprocess.run([sys.executable, "-c", ALLOCATING], check=True, capture_output=True, text=True)
    given_back, kept = map(int, done.stdout.split())
    assert kept * 10 < given_back
