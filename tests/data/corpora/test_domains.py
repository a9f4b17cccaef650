"""A folder of domains."""

from __future__ import annotations

from pathlib import Path

import pytest

from sinkscope.data.corpora.text_files import domains, texts
from sinkscope.errors import InputError


def test_files_and_folders_are_domains_and_hidden_ones_are_not(tmp_path: Path):
    (tmp_path / "law").mkdir()
    (tmp_path / "law" / "b.txt").write_text("second")
    (tmp_path / "law" / "a.txt").write_text("first")
    (tmp_path / "mail.txt").write_text("a letter")
    (tmp_path / ".hidden").write_text("no")
    found = domains(tmp_path)
    assert list(found) == ["law", "mail.txt"]
    assert list(texts(found["law"])) == ["first", "second"]
    assert list(texts(found["mail.txt"])) == ["a letter"]


def test_what_is_no_folder_of_domains_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="holds no domain"):
        domains(tmp_path)
    with pytest.raises(InputError, match="is not a folder of domains"):
        domains(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no files"):
        list(texts(tmp_path / "empty"))
