"""The command line that a measurement names for what to do next."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from sinkscope.cli.measure import _again


@pytest.mark.parametrize(
    ("medium", "text", "field", "said"),
    [
        (None, None, None, "sinkscope intervene m --input natural"),
        (
            None,
            Path("my texts.jsonl"),
            "body",
            "sinkscope intervene m --input natural --text 'my texts.jsonl' --field body",
        ),
        (("images", Path("photos")), None, None, "sinkscope intervene m --images photos"),
    ],
)
def test_the_command_that_is_named_reads_the_same(medium, text, field, said):
    reads = SimpleNamespace(field=field)
    assert _again("intervene", SimpleNamespace(name="m", kind="natural", medium=medium, reads=reads), text) == said
