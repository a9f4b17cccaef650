"""Attention functions by name: transformers' own, flash attentions, functions of a module in the working directory."""

from __future__ import annotations

import sys

import pytest
import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from sinkscope.attention import parity
from sinkscope.attention.oracle import CASES, Case, Problem, backends, exact
from sinkscope.errors import InputError

OWN = """
number = 3

def attend(query, key, value, *, scaling, causal):
    raise NotImplementedError("later")
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A user's module beside the working directory's other files; forgotten afterwards."""
    (tmp_path / "own_attention_here.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("own_attention_here", None)


def test_a_function_of_the_working_directory(own):
    path = list(sys.path)
    found = parity("own_attention_here:attend", quiet=True)
    assert not found.ok  # of nothing is no agreement
    assert {row.note for row in found.rows} >= {"later"}
    assert sys.path == path


@pytest.mark.parametrize("name", ["sdpa", "eager"])
def test_transformers_own(name):
    """Right in everything but softcaps and sinks, which their signatures swallow."""
    found = parity(name, quiet=True)
    assert not found.ok
    right = {row.case for row in found.rows if row.outcome == "agrees"}
    needed = {"sink", "softcap", "empty"}
    assert right - {"sink, closed"} == {case.name for case in CASES if not needed & set(case.features)}
    assert parity(name, without=("sink", "softcap"), quiet=True).ok


@pytest.mark.slow
def test_flash_attentions_get_no_mask(monkeypatch):
    """They hide by what they are told in words: a stand-in that reads nothing else is right."""
    asked = []

    def stand_in(module, query, key, value, mask, *, scaling, is_causal, **rest):
        asked.append((mask, module.config._attn_implementation))
        window, softcap = rest.get("sliding_window"), rest.get("softcap")
        ends = rest.get("cu_seq_lens_q")
        texts = () if ends is None else tuple(ends.diff().tolist())
        case = Case("", query.shape[2], key.shape[2], causal=is_causal, window=window, softcap=softcap, texts=texts)
        problem = Problem(case, query, key, value, rest.get("s_aux"), scaling)
        return exact(problem).output.to(query.dtype).transpose(1, 2), None

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "flash_attention_2", stand_in)
    monkeypatch.setattr(backends, "_installed", lambda name: name == "flash_attention_2")
    found = parity("flash", quiet=True)
    assert found.ok, found.summary
    assert set(asked) == {(None, "flash_attention_2")}
    assert {row.dtype for row in found.rows} == {"bfloat16"}
    assert {row.dtype for row in parity("flash", dtypes=[torch.float16], quiet=True).rows} == {"float16"}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sdpaa", "unknown backend 'sdpaa': did you mean 'sdpa'?"),
        ("nowhere_at_all:f", "module 'nowhere_at_all' cannot be imported"),
        ("own_attention_here:attended", "has no attribute 'attended'"),
        ("own_attention_here:number", "is not a function, but of type int"),
    ],
)
def test_a_name_of_nothing_is_one_line(own, name, words):
    with pytest.raises(InputError) as raised:
        parity(name)
    assert words in str(raised.value)


def test_a_flash_attention_that_is_not_installed_is_bad_input(monkeypatch):
    monkeypatch.setattr(backends, "_installed", lambda name: False)
    with pytest.raises(InputError, match="flash_attention_2 is not installed here"):
        parity("flash_attention_2")
    with pytest.raises(InputError, match="no flash attention is installed here"):
        parity("flash")
