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
        (
            InputOptions(images=Path("photos"), prompt="a b"),
            "sinkscope intervene m --images photos --prompt 'a b'",
        ),
        (
            InputOptions(corpus="prose", windows="packed", bos="none", chat_template=False),
            "sinkscope intervene m --input natural --corpus prose --bos none --windows packed --raw-text",
        ),
        (
            InputOptions(split="all", chat_template=True),
            "sinkscope intervene m --input natural --split all --chat-template",
        ),
    ],
)
def test_the_command_that_is_named_reads_the_same(inputs, line):
    assert command_line("intervene", "m", inputs) == line
