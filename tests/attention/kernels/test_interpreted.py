"""The fused kernels under Triton's interpreter, against the zoo's reference in fp64: values and gradients."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed (it is for Linux only)")


def interpreted(*groups: str) -> dict[str, list[dict]]:
    return answered("tests.attention.kernels.worker", *groups, TRITON_INTERPRET="1")


def answered(module: str, *arguments: str, **variables: str) -> dict[str, list[dict]]:
    command = [sys.executable, "-m", module, *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | variables
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout)


def disagreements(found: dict[str, list[dict]]) -> list[dict]:
    return [one for group in found.values() for one in group if not one["agrees"]]


@pytest.mark.release
def test_values_and_gradients_equal_the_reference_at_every_length_mask_and_dtype() -> None:
    found = interpreted("lengths", "masks", "dtypes")
    assert [len(group) for group in found.values()] == [35, 6, 5]
    assert disagreements(found) == []


@pytest.fixture(scope="module")
def found() -> dict[str, list[dict]]:
    """What takes seconds, from one process."""
    return interpreted("golden", "extreme", "refused", "planted", "faults", "modes", "wired")


@pytest.mark.slow
def test_extremes_goldens_refusals_and_planted_errors(found: dict[str, list[dict]]) -> None:
    rows = {one["row"]: one["weights"] for one in found["golden"]}
    assert rows["picked"] == pytest.approx([0.731059, 0.196612, 0.0], abs=1e-6)  # computed elsewhere
    assert rows["negative"] == rows["far below"] == [0.0, 0.0, 0.0]
    assert all(one["finite"] for one in found["extreme"]), found["extreme"]
    assert not any(one["agrees"] for one in found["planted"]), found["planted"]
    expected = (
        "did you mean 'sigmoid'",
        "a denominator of its own",
        "did you mean 'causal'",
        "window = 0: at least 1",
        "window causal attention only",
        "must be positive",
        "one of float32, bfloat16, float16",
        "at most 128",
        "do not fit each other",
        "at most as many",
    )
    for one, words in zip(found["refused"], expected, strict=True):
        assert words in one["message"]


FOUND_OUT = {
    "values": "output is off by",
    "denominator": "dquery is off by",
    "dq": "dquery is off by",
    "dk": "dkey is off by",
    "dv": "dvalue is off by",
    "nan": "dquery is off by nan",
    "unwritten": "dvalue is off by nan",
    "raises": "RuntimeError: an illegal instruction",
}


@pytest.mark.slow
def test_kernels_with_any_fault_are_refused_and_the_exact_path_runs_with_one_warning(
    found: dict[str, list[dict]],
) -> None:
    faults = {one["fault"]: one for one in found["faults"]}
    sound = faults.pop("none")
    assert (sound["taken"], sound["told"]) == (2, [])
    assert "(streamed, " in sound["before"]
    assert "not yet compared with the reference" in sound["before"]
    assert (
        "fast (fused, O(T) memory): a fused kernel on cpu in float32, compared with the reference on Triton's"
        in sound["after"]
    )
    assert faults.keys() == FOUND_OUT.keys()
    for name, words in FOUND_OUT.items():
        one = faults[name]
        assert one["taken"] == 0, name
        assert one["off"] < 1e-5
        (told,) = one["told"]
        assert words in told
        assert words in one["after"]
        assert "(streamed, " in one["after"]


@pytest.mark.slow
def test_a_comparison_neither_notices_nor_changes_the_modes_of_its_caller(found: dict[str, list[dict]]) -> None:
    modes = found["modes"]
    assert [one["mode"] for one in modes] == ["inference", "no_grad", "autocast", "dispatch", "device"]
    assert all(one["same"] and one["kept"] for one in modes), modes


@pytest.mark.slow
def test_gradients_come_through_autograd_and_a_second_derivative_is_refused(found: dict[str, list[dict]]) -> None:
    assert disagreements({"wired": found["wired"]}) == []
    assert all("no second derivative" in one["twice"] for one in found["wired"])


@pytest.mark.release
def test_values_and_gradients_equal_the_reference_over_the_whole_matrix() -> None:
    assert disagreements(interpreted("thorough")) == []


@pytest.mark.release
def test_the_compiler_makes_machine_code_of_every_kernel_without_a_gpu(tmp_path: Path) -> None:
    """It refuses much that the interpreter lets pass. Shared memory must fit the smallest data-centre GPU."""
    found = answered("tests.attention.kernels.compiler", TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path))
    assert len(found["compiled"]) == 9
    assert all(one["bytes"] > 0 and one["shared"] <= 163 * 1024 for one in found["compiled"]), found["compiled"]
