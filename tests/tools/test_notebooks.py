"""The tutorials run, and each cell that printed something when they were written still does."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def text_of(cell: dict) -> str:
    """What a cell prints; progress goes to stderr."""
    return "".join(output["text"] for output in cell.get("outputs", ()) if output.get("name") == "stdout")


@pytest.mark.release
@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    if path.name[0] in "27" and find_spec("sinkscope_replication") is None:
        pytest.skip("it trains a task of the replication, which is not installed")
    import nbformat
    from nbclient import NotebookClient

    before, after = (nbformat.read(path, as_version=4) for _ in range(2))
    NotebookClient(after, resources={"metadata": {"path": tmp_path}}).execute()
    assert any(map(text_of, before.cells))
    for then, now in zip(before.cells, after.cells, strict=True):
        assert bool(text_of(now)) == bool(text_of(then)), then.source
