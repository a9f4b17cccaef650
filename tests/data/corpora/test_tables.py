"""Files whose rows are documents: each gives the texts that were planted in it, and nothing of its syntax."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sinkscope.data.corpora import load_corpus, texts
from sinkscope.data.corpora.text_files import is_table
from sinkscope.errors import InputError

TEXTS = ["first, with a comma", 'second\nover "lines"', "dritter: ä ≤ 中\u2028auf zwei Zeilen"]
ROWS = [{"id": number, "text": text, "body": text[::-1]} for number, text in enumerate(TEXTS)]


def as_jsonl(path: Path) -> Path:
    path = path.with_suffix(".jsonl")
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS) + "\n", encoding="utf-8")
    return path


def as_json_list(path: Path) -> Path:
    path = path.with_suffix(".json")
    path.write_text(json.dumps(ROWS, indent=1), encoding="utf-8")
    return path


def as_json_lines(path: Path) -> Path:
    return as_jsonl(path).rename(path.with_suffix(".json"))


def as_csv(path: Path) -> Path:
    path = path.with_suffix(".csv")
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, fieldnames=["id", "text", "body"])
        writer.writeheader()
        writer.writerows(ROWS)
    return path


def as_parquet(path: Path) -> Path:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = path.with_suffix(".parquet")
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    return path


WRITERS: list[Callable[[Path], Path]] = [as_jsonl, as_json_list, as_json_lines, as_csv, as_parquet]


@pytest.mark.parametrize("write", WRITERS)
def test_a_file_of_rows_gives_their_texts(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    path = write(tmp_path / "rows")
    assert is_table(path)
    assert list(texts(path)) == TEXTS
    assert list(texts(path, "body")) == [text[::-1] for text in TEXTS]
    assert list(texts(tmp_path)) == TEXTS
    documents = list(load_corpus(f"text:{path}", field="body").documents())
    assert [document.text for document in documents] == [text[::-1] for text in TEXTS]
    assert [document.name for document in documents] == [f"{path.name}#{number:06d}" for number in (1, 2, 3)]


@pytest.mark.parametrize("write", WRITERS)
def test_a_field_that_is_not_there_names_those_that_are(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    path = write(tmp_path / "rows")
    with pytest.raises(InputError, match=r"row 1 has no field 'story': name another \(fields: id, text, body\)"):
        list(texts(path, "story"))


def test_what_is_no_row_of_text_is_said_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    for line, said in (
        ("{not json", "row 2 is not JSON"),
        ("[1]", "row 2 is not an object"),
        ('{"text": 3}', "holds int"),
    ):
        path.write_text(f'{{"text": "one"}}\n\n{line}\n')
        with pytest.raises(InputError, match=said):
            list(texts(path))
    path.write_text('{"text": null}\n{"text": ""}\n{"text": "one"}\n')
    assert list(texts(path)) == ["one"]


def test_other_json_is_text_as_it_stands(tmp_path: Path) -> None:
    for number, content in enumerate(('{"text": "one"}', "[1, 2]", "not json", "[]")):
        path = tmp_path / f"{number}.json"
        path.write_text(content)
        assert list(texts(path)) == [content]


def test_a_field_of_plain_text_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    for wrong in (
        lambda: list(texts(tmp_path / "a.txt", "body")),
        lambda: load_corpus(f"text:{tmp_path}/*", field="b"),
    ):
        with pytest.raises(InputError, match="goes with files of rows"):
            wrong()
    with pytest.raises(InputError, match="not with 'python'"):
        load_corpus("python", field="body")


def test_parquet_without_its_reader_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = as_parquet(tmp_path / "rows")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"sinkscope\[data\]"):
        list(texts(path))
