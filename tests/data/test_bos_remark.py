from __future__ import annotations

from types import SimpleNamespace

import pytest

import sinkscope as ss
from sinkscope.data import bos_remark, build_inputs, load_corpus
from sinkscope.model import load_tokenizer

BOS = SimpleNamespace(bos_token_id=2, bos_token="<bos>")
PLAIN = "def f(x):\n    return x\n" * 30


def test_rows_with_one_bos_are_passed_over_in_silence():
    assert bos_remark(BOS, [[2, 5, 2], [2, 6, 7]]) == ""
    assert bos_remark(SimpleNamespace(bos_token_id=None), [[5, 6]]) == ""


def test_rows_without_one_are_said_with_both_ids():
    said = bos_remark(BOS, [[5, 6], [7, 8]])
    assert "<bos> (id 2)" in said
    assert "begins with id 5" in said


def test_two_are_warned_about_with_both_ids():
    with pytest.warns(UserWarning, match=r"1 of 2 rows begin with two BOS \(ids \[2, 2\]\)"):
        bos_remark(BOS, [[2, 2, 5], [2, 5, 6]])
    bos_remark(BOS, [[2, 2, 5]], twice=True)


def test_texts_that_hold_a_bos_are_noticed_in_python():
    with pytest.warns(UserWarning, match="two BOS"):
        ss.measure("nano", texts=["<bos>" + PLAIN], tokens=24)


def test_texts_without_one_say_so_in_the_record():
    bare = load_tokenizer("nano")
    bare.add_bos_token = False
    bare.backend_tokenizer.post_processor = None
    m = ss.measure("nano", texts=[PLAIN], tokens=24, tokenizer=bare)
    assert "without the BOS <bos> (id 0)" in m.record["input"]["first"]
    for windows in ("starts", "within"):
        m = ss.measure("nano", texts=[PLAIN], tokens=24, windows=windows)
        assert "without" not in m.record["input"]["first"]


def test_inputs_of_commands_say_so_too():
    settings = {"tokenizer": load_tokenizer("nano"), "vocab_size": 2048, "tokens": 24, "samples": 2, "seed": 0}
    assert "without the BOS" in build_inputs("natural", **settings, corpus="prose", split="all", bos="none").first
    assert "without" not in build_inputs("natural", **settings, corpus="prose", split="all").first
    assert "2 times" in build_inputs("natural", **settings, corpus="prose", split="all", bos="double").first


def test_prose_comes_along():
    corpus = load_corpus("prose")
    texts = [entry.read() for entry in corpus.entries]
    assert len(texts) == 72
    assert all(900 < len(text) < 2000 and text.count("\n\n") >= 2 for text in texts)
