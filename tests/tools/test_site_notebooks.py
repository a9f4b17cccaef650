"""The tutorials run, and each cell that printed something when they were written still does."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import plotly.graph_objects as go
import pytest

from tools.site.notebooks import cells, notebook, notebooks, page, run, source


@pytest.fixture(autouse=True)
def alone() -> None:
    """Unlike other tests, tutorials see the tasks of the replication where it is installed."""


def said(cell: dict) -> str:
    """The text that a cell shows."""
    data = (output.get("text", output.get("data", {}).get("text/plain", ())) for output in cell.get("outputs", ()))
    return "".join(line for lines in data for line in lines)


@pytest.mark.release
@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path) -> None:
    if path.name[0] in "27" and find_spec("sinkscope_replication") is None:
        pytest.skip("it trains a task of the replication, which is not installed")
    for before, after in zip(cells(path), run(path), strict=True):
        assert bool(said(after)) == bool(said(before)), source(before)


def test_a_notebook_is_run_and_becomes_a_page(tmp_path: Path) -> None:
    made = [
        {"cell_type": "markdown", "metadata": {}, "source": ["# A\n", "[x](../docs/zoo.md)"]},
        {"cell_type": "code", "metadata": {}, "source": ["x = 2\n", "print('two')\n", "x + 1"], "outputs": []},
        {
            "cell_type": "code",
            "metadata": {"alt": "a point"},
            "source": ["import plotly.graph_objects as go\n", "go.Figure()"],
            "outputs": [],
        },
    ]
    path = tmp_path / "1_a.ipynb"
    path.write_text(notebook(made))
    drawn: list[go.Figure] = []

    def draw(figure: go.Figure) -> bytes:
        drawn.append(figure)
        return b"png"

    done = run(path, draw)
    assert [said(cell) for cell in done] == ["", "two\n3", ""]
    assert len(drawn) == 1
    assert run(path)[2]["outputs"] == []
    path.write_text(notebook(done))
    text, pictures = page(path)
    assert "[x](../zoo.md)" in text
    assert "```python\nx = 2\nprint('two')\nx + 1\n```\n\n```text\ntwo\n```\n\n```text\n3\n```" in text
    assert "![a point](1_a-2.png)" in text
    assert pictures == {"1_a-2.png": b"png"}
    assert json.loads(path.read_text())["nbformat"] == 4
