"""The command line that a measurement names for what to do next."""

from __future__ import annotations

from pathlib import Path

import pytest

from sinkscope.cli.measure import command_line
from sinkscope.cli.options import InputOptions


@pytest.mark.parametrize(
    ("inputs", "line"),
    [
        (InputOptions(), "sinkscope intervene m --input natural"),
        (
            InputOptions(text=Path("my texts.jsonl"), field="body"),
            "sinkscope intervene m --input natural --text 'my texts.jsonl' --field body",
        ),
        (InputOptions(images=Path("photos")), "sinkscope intervene m --images photos"),
    ],
)
def test_the_command_that_is_named_reads_the_same(inputs, line):
    assert command_line("intervene", "m", inputs) == line
