"""Names of models for people."""

from __future__ import annotations

from pathlib import Path

import pytest

from sinkscope.names import short, shortened


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["nano", "meta-llama/Llama-3.1-8B"], ("nano", "meta-llama/Llama-3.1-8B")),
        (["/a/model.gguf", "nano"], ("model.gguf", "nano")),
        (["/runs/x/checkpoint-5", "/runs/y/checkpoint-5"], ("x/checkpoint-5", "y/checkpoint-5")),
        (["/runs/x/m", "/runs/x/m"], ("m", "m")),
        (["/a/b/m", "/c/b/m", "/d/n"], ("a/b/m", "c/b/m", "n")),
    ],
)
def test_paths_are_as_short_as_tells_them_apart(names: list[str], said: tuple[str, ...]):
    assert shortened(names) == said


def test_a_folder_is_called_by_its_name(tmp_path: Path):
    assert short(tmp_path) == tmp_path.name
