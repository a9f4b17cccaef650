from __future__ import annotations

import json
import sys
from pathlib import Path

import datasets
import pytest

from sinkscope.data import load_corpus
from sinkscope.errors import InputError

ROWS = [{"id": index, "text": f"row {index} é\n" + "word " * index, "url": "somewhere"} for index in range(8)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dataset in a folder, which `datasets` reads offline as it reads one of the hub."""
    return written(tmp_path / "rows", ROWS)


def written(folder: Path, rows: list[dict[str, object]]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def texts(name: str, limit: int | None = None) -> list[str]:
    return [document.text for document in load_corpus(name, limit).documents()]


def test_rows_become_documents(folder: Path):
    corpus = load_corpus(f"hf:{folder}")
    assert [document.text for document in corpus.documents()] == [row["text"] for row in ROWS]
    assert list(corpus.names) == sorted(corpus.names)
    assert corpus.name == "hf:rows:train"
    assert not corpus.truncated
    assert texts(f"hf:{folder}::train") == texts(f"hf:{folder}")


def test_a_limit_takes_whole_documents_and_says_so(folder: Path, logged: list[str]):
    corpus = load_corpus(f"hf:{folder}", 40)
    assert [document.text for document in corpus.documents()] == [row["text"] for row in ROWS[:3]]
    assert corpus.truncated
    assert any("was cut after 3 documents" in line for line in logged)


def test_a_changed_local_folder_is_read_anew(folder: Path):
    before = texts(f"hf:{folder}")
    written(folder, ROWS[::-1])
    assert texts(f"hf:{folder}") == before[::-1]


def test_a_hub_dataset_is_streamed_once(monkeypatch: pytest.MonkeyPatch):
    calls = []

    def load_dataset(*args: object, **options: object) -> list[dict[str, object]]:
        calls.append((args, options))
        return [{"text": "one"}, {"text": None}, {"text": "two\0"}]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert texts("hf:someone/something:small:test") == texts("hf:someone/something:small:test") == ["one", "two"]
    assert calls == [(("someone/something", "small"), {"split": "test", "streaming": True})]


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([{"a": "x", "b": "y"}], r"no column 'text' and 2 columns of strings \(columns: a, b\)"),
        ([{"a": 1}], "0 columns of strings"),
        ([{"text": 5}], "the column 'text' .* holds int, not text"),
    ],
)
def test_the_text_column_must_be_clear(tmp_path: Path, rows: list[dict[str, object]], reason: str):
    with pytest.raises(InputError, match=reason):
        load_corpus(f"hf:{written(tmp_path / 'unclear', rows)}")


def test_a_single_column_of_strings_is_the_text(tmp_path: Path):
    folder = written(tmp_path / "single", [{"n": 1, "content": "hello"}])
    assert texts(f"hf:{folder}") == ["hello"]


@pytest.mark.parametrize(
    ("suffix", "reason"), [("::nope", "Bad split: nope"), (":nope", "BuilderConfig 'nope' not found")]
)
def test_what_datasets_refuses_is_told_in_a_line(folder: Path, cache: Path, suffix: str, reason: str):
    with pytest.raises(InputError, match=rf"cannot read the dataset .*{reason}") as caught:
        load_corpus(f"hf:{folder}{suffix}")
    assert "\n" not in str(caught.value)
    assert not list((cache / "hub").glob("*/"))


def test_an_unreachable_hub_and_a_broken_stream_leave_no_entry(monkeypatch: pytest.MonkeyPatch, cache: Path):
    def unreachable(*_: object, **__: object) -> object:
        raise ConnectionError("Couldn't reach 'someone/something' on the Hub\nand more")

    def breaking(*_: object, **__: object) -> object:
        yield {"text": "one"}
        raise OSError("connection reset")

    for load_dataset, reason in ((unreachable, "Couldn't reach"), (breaking, "connection reset")):
        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        with pytest.raises(InputError, match=rf"cannot read the dataset 'someone/something': {reason}"):
            load_corpus("hf:someone/something")
    assert not list((cache / "hub").glob("*/"))


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"pip install 'sinkscope\[data\]'"):
        load_corpus("hf:someone/something")
