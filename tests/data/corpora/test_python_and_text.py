from __future__ import annotations

import platform
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinkscope.data import TextDocument, load_corpus
from sinkscope.data.corpora.corpus import TextDigest, digest
from sinkscope.errors import InputError


@pytest.mark.slow
def test_python_lists_sources_and_topics_in_a_stable_order():
    corpus = load_corpus("python")
    names = corpus.names
    assert list(names) == sorted(set(names))
    assert {"stdlib/argparse.py", "torch/nn/functional.py", "numpy/lib/_npyio_impl.py", "topics/assert"} <= set(names)
    assert "transformers/trainer.py" in names
    assert not [name for name in names if name.startswith(("transformers/models/", "/"))]
    assert not [name for name in names if {"test", "tests", "idlelib", "site-packages"} & set(name.split("/"))]
    assert not [name for name in names if "_sysconfigdata" in name or name.endswith("__config__.py")]
    assert corpus.versions["python"] == platform.python_version()
    [topic] = corpus.documents({"topics/assert"})
    assert "AssertionError" in topic.text


def test_python_says_what_is_not_installed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sinkscope.data.corpora.python_corpus.PACKAGES", ("torch", "torhc_is_not_here"))
    with pytest.raises(InputError, match="torhc_is_not_here, which is not installed"):
        load_corpus("python")


def test_text_reads_every_file_once_and_leaves_out_the_empty_one(notes: str):
    corpus = load_corpus(notes)
    documents = list(corpus.documents())
    assert [document.name for document in documents][-2:] == ["deeper/09.txt", "deeper/10.txt"]
    assert len(corpus.names) == 12
    assert len(documents) == 11
    assert corpus.name == "text:**/*.txt"
    assert [document.name for document in corpus.documents({"03.txt", "empty.txt"})] == ["03.txt"]


def test_the_digest_sees_names_and_texts(notes: str, tmp_path: Path):
    before = digest(load_corpus(notes))
    assert before.hexdigest() == digest(load_corpus(notes)).hexdigest()
    assert before.documents == 11
    (tmp_path / "notes" / "00.txt").rename(tmp_path / "notes" / "0.txt")
    renamed = digest(load_corpus(notes)).hexdigest()
    (tmp_path / "notes" / "0.txt").write_text("other")
    assert len({before.hexdigest(), renamed, digest(load_corpus(notes)).hexdigest()}) == 3


@given(st.lists(st.tuples(st.text(max_size=4), st.text(max_size=4)), max_size=3), st.data())
@pytest.mark.slow
def test_no_two_sequences_of_documents_share_a_digest(pairs: list[tuple[str, str]], data: st.DataObject):
    other = data.draw(st.lists(st.tuples(st.text(max_size=4), st.text(max_size=4)), max_size=3))
    hexdigests = []
    for sequence in (pairs, other):
        total = TextDigest()
        for name, text in sequence:
            total.add(TextDocument(name, text))
        hexdigests.append(total.hexdigest())
    assert (hexdigests[0] == hexdigests[1]) == (pairs == other)


@pytest.mark.parametrize("text", ["".join(f"line {i}\n" for i in range(9000)), "no line end " * 4000, "é" * 9000, "x"])
def test_a_file_that_stands_alone_is_cut_at_line_ends_without_loss(tmp_path: Path, text: str):
    path = tmp_path / "one.txt"
    path.write_text(text, encoding="utf-8")
    documents = list(load_corpus(f"text:{path}").documents())
    assert "".join(document.text for document in documents) == text
    assert len({document.name for document in documents}) == len(documents)
    assert all(document.text.endswith("\n") for document in documents[:-1])
    assert len(documents) == (6 if text.startswith("line") else 1)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"abc\xff\xfe", "invalid UTF-8 at byte 3"), ("text".encode("utf-16-le"), "NUL byte at 1")],
)
def test_a_file_that_is_not_text_is_named(tmp_path: Path, content: bytes, reason: str):
    (tmp_path / "a.txt").write_text("fine")
    (tmp_path / "b.bin").write_bytes(content)
    with pytest.raises(InputError, match=rf"b\.bin is not text: {reason}"):
        list(load_corpus(f"text:{tmp_path}/*").documents())


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("pyton", "unknown corpus 'pyton': did you mean 'python'?"),
        ("txt:a", "unknown corpus 'txt:a'"),
        ("python:3", "unknown corpus 'python:3'"),
        ("text:", "not of the form text:GLOB"),
        ("hf:", "not of the form hf:NAME"),
        ("hf:a:b:c:d", "not of the form hf:NAME"),
        ("text:/nowhere/*.txt", "no file matches '/nowhere/"),
    ],
)
def test_bad_names_are_told_in_a_line(name: str, reason: str):
    with pytest.raises(InputError) as caught:
        load_corpus(name)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
