"""`python -m tools.kernels`: the tables, the exit codes, and one line where there is nothing to compare."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, replace

import pytest
import torch

import sinkscope.attention.kernels as room
from sinkscope.attention.kernels import Machine, Specialization, confirmation
from sinkscope.attention.kernels.comparison import LIMITS, plain
from sinkscope.attention.normalizers import Sigmoid, Softpick
from sinkscope.attention.oracle import ParityRow
from tools import kernels

CPU = torch.device("cpu")
HERE = Machine("some GPU", "9.0", "2.13.0", "3.7.1", "abc")
SIGMOID = Specialization(Sigmoid(normalized=True), False, torch.float32, 8, 8)
SOFTPICK = Specialization(Softpick(), True, torch.bfloat16, 64, 64)
FINE = {"output": 1e-7, "dquery": 2e-7, "dkey": 3e-7, "dvalue": 0.0}


@dataclass
class Answer:
    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line on stderr of bad input."""
        assert self.code == 2
        assert self.err.count("\n") == 1
        return self.err.strip()

    @property
    def json(self) -> dict:
        return json.loads(self.out)


@pytest.fixture
def check(capsys):
    def run(*arguments):
        code = kernels.main(arguments)
        return Answer(code, *capsys.readouterr())

    return run


@pytest.fixture
def found(monkeypatch, tmp_path):
    """Two kernels on something that passes for a GPU; what a comparison finds of the second case of softpick."""
    second = {"errors": FINE, "raised": None}

    def row(case, errors, raised):
        about = str(case), plain(case.dtype)
        limit = LIMITS[case.dtype]
        return ParityRow.of_error(*about, raised, limit) if raised else ParityRow.judged(*about, errors, limit)

    def compared(cases, device):
        first, other = list(cases)[:2]
        return [
            row(first, FINE, None),
            row(other, **second) if other.normalizer == Softpick() else row(other, FINE, None),
        ]

    monkeypatch.setenv("SINKSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(confirmation, "_met", {})
    monkeypatch.setattr(confirmation, "_warning", threading.Lock())
    monkeypatch.setattr(confirmation, "machine", lambda _: HERE)
    monkeypatch.setattr(room, "machine", lambda _: HERE)
    monkeypatch.setattr(room, "every", lambda: iter([SIGMOID, SOFTPICK]))
    monkeypatch.setattr(room, "compared", compared)
    monkeypatch.setattr(kernels, "_usable", lambda _: CPU)
    return second


def test_prints_every_comparison_and_remembers_them(check, found):
    answer = check()
    assert answer.code == 0, answer.err
    words = " ".join(answer.out.split())
    assert "fused kernels on some GPU: 4 agrees" in words
    assert "sigmoid, normalized" in words
    assert "1.0e-07" in words
    assert room.known(SIGMOID, CPU).problem is None
    assert room.known(replace(SIGMOID, dim=16), CPU) is None


def test_json_holds_every_number(check, found):
    answer = check("--json").json
    assert answer["ok"] is True
    assert answer["machine"] == {
        "gpu": "some GPU",
        "capability": "9.0",
        "torch": "2.13.0",
        "triton": "3.7.1",
        "kernels": "abc",
    }
    assert len(answer["rows"]) == 4
    assert answer["rows"][1] == {
        "case": "sigmoid, normalized; causal; B=2 T=63/63 H=4/2 D=8/8 x1",
        "dtype": "float32",
        "outcome": "agrees",
        "errors": FINE,
        "limit": 1e-5,
        "note": "",
    }


@pytest.mark.parametrize("amount", [0.5, float("nan")])
def test_one_that_disagrees_exits_with_1(check, found, amount):
    found["errors"] = FINE | {"dkey": amount}
    answer = check()
    assert answer.code == 1
    words = " ".join(answer.out.split())
    assert "3 agrees, 1 differs" in words
    assert f"dkey is off by {amount:.1e}, at most 1.6e-02" in words
    again = check("--json")
    assert (again.code, again.json["ok"]) == (1, False)
    assert [row["outcome"] for row in again.json["rows"]] == ["agrees"] * 3 + ["differs"]
    assert again.json["rows"][3]["errors"]["dkey"] == (None if amount != amount else amount)
    assert room.known(SOFTPICK, CPU).problem is not None


def test_one_that_raises_exits_with_1(check, found):
    found["raised"] = RuntimeError("no compiler")
    answer = check()
    assert answer.code == 1
    assert "RuntimeError: no compiler" in " ".join(answer.out.split())
    assert check("--json").json["rows"][3]["note"] == "RuntimeError: no compiler"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device: the comparison would run")
@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_without_a_gpu_one_line(check, arguments):
    answer = check(*arguments)
    assert answer.error == "error: no CUDA device here: fused kernels can only be compared on one"
    assert answer.out == ""


def test_a_device_that_runs_no_kernel_is_bad_input(check, monkeypatch):
    assert "fused kernels cannot be compared: " in check("--device", "cpu").error
    monkeypatch.setattr(room, "unavailable", lambda _: "triton is not installed")
    assert check("--device", "cpu").error.endswith("triton is not installed")
    assert "device 'gpu' cannot be used" in check("--device", "gpu").error
