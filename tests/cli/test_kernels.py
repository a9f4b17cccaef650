"""`sinkscope kernels`: the tables, the exit codes, and one line where there is nothing to compare."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace

import pytest
import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import sinkscope.attention.kernels as room
from sinkscope.attention.kernels import Agreement, Machine, Specialization, confirmation
from sinkscope.attention.normalizers import Sigmoid, Softpick
from sinkscope.attention.oracle import CASES, Case, Problem, backends, exact
from sinkscope.cli import kernels

CPU = torch.device("cpu")
HERE = Machine("some GPU", "9.0", "2.13.0", "3.7.1", "abc")
SIGMOID = Specialization(Sigmoid(normalized=True), False, torch.float32, 8, 8)
SOFTPICK = Specialization(Softpick(), True, torch.bfloat16, 64, 64)
FINE = {"output": 1e-7, "query": 2e-7, "key": 3e-7, "value": 0.0}


@pytest.fixture
def found(monkeypatch, tmp_path):
    """Two kernels on something that passes for a GPU; what a comparison finds of the second case of softpick."""
    second = {"differences": FINE, "raised": None}

    def compared(cases, device):
        listed = list(cases)
        other = isinstance(listed[1].normalizer, Softpick)
        changed = Agreement(listed[1], **second) if other else Agreement(listed[1], FINE)
        return [Agreement(listed[0], FINE), changed]

    monkeypatch.setenv("SINKSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(confirmation, "_met", {})
    monkeypatch.setattr(confirmation, "_warning", threading.Lock())
    monkeypatch.setattr(confirmation, "machine", lambda _: HERE)
    monkeypatch.setattr(room, "machine", lambda _: HERE)
    monkeypatch.setattr(room, "every", lambda: iter([SIGMOID, SOFTPICK]))
    monkeypatch.setattr(room, "compared", compared)
    monkeypatch.setattr(kernels, "_usable", lambda _: CPU)
    return second


def test_prints_every_comparison_and_remembers_them(sinkscope, found):
    answer = sinkscope("kernels", "check")
    assert answer.code == 0, answer.err
    words = " ".join(answer.out.split())
    assert "4 of 4 comparisons agree on some GPU" in words
    assert "sigmoid, normalized" in words
    assert "1.0e-07" in words
    assert room.known(SIGMOID, CPU).problem is None
    assert room.known(replace(SIGMOID, dim=16), CPU) is None


def test_json_holds_every_number(sinkscope, found):
    answer = sinkscope("kernels", "check", "--json").json
    assert answer["agree"] is True
    assert answer["machine"] == {
        "gpu": "some GPU",
        "capability": "9.0",
        "torch": "2.13.0",
        "triton": "3.7.1",
        "kernels": "abc",
    }
    assert len(answer["comparisons"]) == 4
    assert answer["comparisons"][1] == {
        "weights": "sigmoid, normalized",
        "mask": "causal",
        "shape": "B=2 T=63/63 H=4/2 D=8/8 x1",
        "dtype": "float32",
        "differences": FINE,
        "limit": 1e-5,
        "agrees": True,
        "raised": None,
    }


@pytest.mark.parametrize("amount", [0.5, float("nan")])
def test_one_that_disagrees_exits_with_1(sinkscope, found, amount):
    found["differences"] = FINE | {"key": amount}
    answer = sinkscope("kernels", "check")
    assert answer.code == 1
    words = " ".join(answer.out.split())
    assert "3 of 4 comparisons agree" in words
    assert f"disagrees: the gradient of the key differs by {amount:.2g}, at most 0.016 (softpick; full" in words
    again = sinkscope("kernels", "check", "--json")
    assert (again.code, again.json["agree"]) == (1, False)
    assert [row["agrees"] for row in again.json["comparisons"]] == [True, True, True, False]
    assert again.json["comparisons"][3]["differences"]["key"] == (None if amount != amount else amount)
    assert room.known(SOFTPICK, CPU).problem is not None


def test_one_that_raises_exits_with_1(sinkscope, found):
    found.update(differences={}, raised="RuntimeError: no compiler")
    answer = sinkscope("kernels", "check")
    assert answer.code == 1
    assert "disagrees: RuntimeError: no compiler (softpick" in " ".join(answer.out.split())
    assert sinkscope("kernels", "check", "--json").json["comparisons"][3]["raised"] == "RuntimeError: no compiler"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device: the comparison would run")
@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_without_a_gpu_one_line(sinkscope, arguments):
    answer = sinkscope("kernels", "check", *arguments)
    assert answer.error == "error: no CUDA device here: fused kernels can only be compared on one"
    assert answer.out == ""


def test_a_device_that_runs_no_kernel_is_bad_input(sinkscope, monkeypatch):
    assert "fused kernels cannot be compared: " in sinkscope("kernels", "check", "--device", "cpu").error
    monkeypatch.setattr(room, "unavailable", lambda _: "triton is not installed")
    assert sinkscope("kernels", "check", "--device", "cpu").error.endswith("triton is not installed")
    assert "device 'gpu' cannot be used" in sinkscope("kernels", "check", "--device", "gpu").error


def test_the_help_has_an_example(sinkscope):
    assert "Example: sinkscope kernels check" in sinkscope("kernels", "--help").out


RIGHT = """
import torch

def attend(query, key, value, *, scaling, causal, window=None, softcap=None, sink=None):
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = scaling * query @ key.mT
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    distance = torch.arange(query.shape[2])[:, None] - torch.arange(key.shape[2]) + key.shape[2] - query.shape[2]
    if causal:
        scores = scores.masked_fill(distance < 0, -torch.inf)
    if window is not None:
        scores = scores.masked_fill(distance.abs() >= window, -torch.inf)
    lse = torch.logsumexp(scores, -1)
    weights = torch.softmax(scores, -1)
    if sink is not None:
        weights = weights * torch.sigmoid(lse[..., None] - sink[:, None, None])
    return weights @ value, lse

def wrong(query, key, value, *, scaling, causal, window=None, softcap=None, sink=None):
    return attend(query, key, value, scaling=scaling, causal=causal, window=window, softcap=softcap)

def nothing(query, key, value, **further):
    raise NotImplementedError("later")

number = 3
"""


@pytest.fixture
def own(sinkscope, tmp_path):
    """A user's module beside the working directory's other files; forgotten afterwards."""
    (tmp_path / "own_attention_here.py").write_text(RIGHT)
    yield sinkscope
    sys.modules.pop("own_attention_here", None)


def test_parity_finds_a_function_of_the_working_directory_right(own):
    path = list(sys.path)
    answer = own("kernels", "parity", "own_attention_here:attend", "--lse", "tokens", "--without", "empty")
    assert answer.code == 0, answer.err
    words = " ".join(answer.out.split())
    assert "sink, large logits" in words
    able = [case for case in CASES if not {"empty", "packed"} & set(case.features)]
    assert f"attend: {len(able)} agrees, {len(CASES) - len(able)} not supported" in words
    assert sys.path == path
    other = own("kernels", "parity", "own_attention_here:attend", "--lse", "total", "--json")
    assert (other.code, other.json["ok"]) == (1, False)
    assert "its lse is over tokens alone, declared over tokens and sink" in other.out


@pytest.mark.slow
def test_parity_names_a_dropped_sink_and_exits_with_1(own):
    answer = own("kernels", "parity", "own_attention_here:wrong", "--dtype", "float32", "--dtype", "bfloat16")
    assert answer.code == 1
    assert "sink, window, bfloat16: differs: drops the sink" in answer.out
    found = own("kernels", "parity", "own_attention_here:wrong", "--no-gradients", "--without", "empty", "--json")
    assert found.code == 1
    named = {row["case"] for row in found.json["rows"] if row["outcome"] == "differs"}
    able = [case for case in CASES if not {"empty", "packed"} & set(case.features)]
    assert named == {case.name for case in able if case.sink in ("beside", "far")}
    answer = own("kernels", "parity", "own_attention_here:wrong", "--without", "sink", "--without", "empty")
    assert answer.code == 0, answer.out
    assert own("kernels", "parity", "own_attention_here:wrong", "--without", "sink", "--complete").code == 1


def test_parity_of_nothing_is_no_agreement(own):
    answer = own("kernels", "parity", "own_attention_here:nothing")
    assert answer.code == 1
    assert "no case was compared: none is supported" in answer.out


@pytest.mark.parametrize("name", ["sdpa", "eager"])
def test_parity_of_transformers_own(sinkscope, name):
    """Right in everything but softcaps and sinks, which their signatures swallow."""
    found = sinkscope("kernels", "parity", name, "--json")
    assert found.code == 1
    right = {row["case"] for row in found.json["rows"] if row["outcome"] == "agrees"}
    needed = {"sink", "softcap", "empty"}
    assert right - {"sink, closed"} == {case.name for case in CASES if not needed & set(case.features)}
    assert sinkscope("kernels", "parity", name, "--without", "sink", "--without", "softcap").code == 0


def test_flash_attentions_get_no_mask(sinkscope, monkeypatch):
    """They hide by what they are told in words: a stand-in that reads nothing else is right."""
    asked = []

    def stand_in(module, query, key, value, mask, *, scaling, is_causal, **rest):
        asked.append((mask, module.config._attn_implementation))
        window, softcap = rest.get("sliding_window"), rest.get("softcap")
        ends = rest.get("cu_seq_lens_q")
        texts = () if ends is None else tuple(ends.diff().tolist())
        case = Case("", query.shape[2], key.shape[2], causal=is_causal, window=window, softcap=softcap, texts=texts)
        return exact(Problem(case, query, key, value, rest.get("s_aux"), scaling)).output.to(query.dtype).transpose(
            1, 2
        ), None

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "flash_attention_2", stand_in)
    monkeypatch.setattr(backends, "_installed", lambda name: name == "flash_attention_2")
    answer = sinkscope("kernels", "parity", "flash", "--json")
    assert answer.code == 0, answer.out
    assert set(asked) == {(None, "flash_attention_2")}
    assert {row["dtype"] for row in answer.json["rows"]} == {"bfloat16"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sdpaa"], "unknown backend 'sdpaa': did you mean 'sdpa'?"),
        (["nowhere_at_all:f"], "module 'nowhere_at_all' cannot be imported"),
        (["own_attention_here:attended"], "has no attribute 'attended'"),
        (["own_attention_here:number"], "is no function, but of type int"),
        (["--without", "sinks"], "unknown feature 'sinks': did you mean 'sink'?"),
        (["--dtype", "float31"], "unknown precision 'float31'"),
        (["--device", "nowhere"], "device 'nowhere' cannot be used"),
        (["--style", "fast"], "fast"),
    ],
)
def test_parity_of_bad_input_is_one_line(own, arguments, words):
    answer = own("kernels", "parity", *arguments)
    assert words in answer.error
    assert answer.out == ""


def test_a_flash_attention_that_is_not_installed_is_bad_input(sinkscope, monkeypatch):
    monkeypatch.setattr(backends, "_installed", lambda name: False)
    assert sinkscope("kernels", "parity", "flash_attention_2").error.endswith("flash_attention_2 is not installed here")
    assert "no flash attention is installed here" in sinkscope("kernels", "parity", "flash").error
