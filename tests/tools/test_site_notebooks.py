"""The tutorials run, and show what they showed when they were written."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path

import plotly.graph_objects as go
import pytest

from tools.site.notebooks import EXAMPLES, cells, notebook, notebooks, page, run, source

NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
CLOSE = 0.1  # digits move with the versions of what is read and computed with
TOPICS = (
    "measure_your_model",
    "watch_a_sink_emerge",
    "does_it_matter",
    "attach_and_fine_tune",
    "stream_for_a_million_tokens",
    "what_to_protect_when_quantizing",
    "ask_your_own_question",
)


def said(cell: dict) -> str:
    """The text that a cell shows."""
    data = (output.get("text", output.get("data", {}).get("text/plain", ())) for output in cell.get("outputs", ()))
    return "".join(line for lines in data for line in lines)


def alike(one: str, other: str) -> bool:
    """Whether two texts have the same words, and numbers that are about the same."""
    words = [NUMBER.sub("#", text).split() for text in (one, other)]
    numbers = [[float(number.replace(",", "")) for number in NUMBER.findall(text)] for text in (one, other)]
    return words[0] == words[1] and all(abs(a - b) <= max(CLOSE * abs(b), 0.1) for a, b in zip(*numbers, strict=True))


def test_there_is_a_tutorial_for_each_question() -> None:
    assert [path.stem.partition("_")[2] for path in notebooks()] == list(TOPICS)


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_a_notebook_shows_what_it_found(path: Path) -> None:
    first, *rest = cells(path)
    assert source(first).startswith("# ")
    code = [cell for cell in rest if cell["cell_type"] == "code"]
    assert any(cell["outputs"] for cell in code)
    assert all(cell["execution_count"] for cell in code), "run it: python -m tools.site.notebooks"
    for cell in code:
        pictures = [output for output in cell["outputs"] if "image/png" in output.get("data", {})]
        assert not pictures or len(cell["metadata"]["alt"].split()) >= 10
    links = re.findall(r"\]\((?!http)([^)#]+)", "".join(map(source, rest)))
    assert links
    assert all((path.parent / link).is_file() for link in links)


@pytest.mark.release
@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_a_notebook_runs_and_says_the_same(path: Path) -> None:
    if path.name[0] in "27" and find_spec("sinkscope_replication") is None:
        pytest.skip("it trains a task of the replication, which is not installed")
    for before, after in zip(cells(path), run(path), strict=True):
        if "varies" not in before["metadata"].get("tags", ()):
            assert alike(said(after), said(before)), f"{said(before)}\n---\n{said(after)}"


def test_texts_are_alike_in_their_words_and_nearly_in_their_numbers() -> None:
    assert alike("rate 12.5 % of 1,024", "rate 12.4 % of 1,024")
    assert not alike("rate 12.5 %", "rate 9.5 %")
    assert not alike("rate 12.5 %", "sink 12.5 %")


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


def test_the_tutorials_stand_in_examples() -> None:
    assert {path.name for path in EXAMPLES.iterdir()} == {path.name for path in notebooks()}
