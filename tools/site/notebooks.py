"""Tutorials: notebooks as pages of the site, and running them.

`python -m tools.site.notebooks` runs all of `examples/` and writes what they show into them; figures need Chromium.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from sinkscope.files import write_text
from tools.pages import ROOT

EXAMPLES = ROOT / "examples"
Draw = Callable[[go.Figure], bytes]


def notebooks() -> list[Path]:
    """The tutorials in their order."""
    return sorted(EXAMPLES.glob("*.ipynb"))


def cells(path: Path) -> list[dict[str, Any]]:
    """The cells of a notebook as it is stored."""
    return list(json.loads(path.read_text(encoding="utf-8"))["cells"])


def source(cell: Mapping[str, Any]) -> str:
    """A cell's text."""
    return "".join(cell["source"])


def page(path: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, and its pictures by the name of their file."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for number, cell in enumerate(cells(path)):
        if cell["cell_type"] == "markdown":
            parts.append(source(cell).replace("](../docs/", "](../"))
            continue
        parts.append(f"```python\n{source(cell)}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{path.stem}-{number}.png"
                pictures[name] = base64.b64decode(data["image/png"])
                parts.append(f"![{cell['metadata']['alt']}]({name})")
            else:
                text = "".join(output.get("text", data.get("text/plain", ""))).rstrip()
                parts.append(f"```text\n{text}\n```")
    return "\n\n".join([*parts, f"*This page is the notebook `examples/{path.name}`.*\n"]), pictures


def shown(cell: Mapping[str, Any], names: dict[str, object], draw: Draw | None) -> list[dict[str, Any]]:
    """Run a cell; what it printed, and the value of its last line, as a notebook stores them.

    Figures are left out without `draw`.
    """
    tree = ast.parse(source(cell))
    last = tree.body[-1] if tree.body else None
    ends = isinstance(last, ast.Expr)
    if isinstance(last, ast.Expr):
        tree.body[-1] = ast.copy_location(ast.Assign([ast.Name("_", ast.Store())], last.value), last)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.fix_missing_locations(tree), "<cell>", "exec"), names)
    value = names.get("_") if ends else None
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": _lines(printed.getvalue())})
    if isinstance(value, go.Figure):
        data = {} if draw is None else {"image/png": base64.b64encode(draw(value)).decode()}
        outputs += [{"output_type": "display_data", "metadata": {}, "data": data}] if data else []
    elif value is not None:
        text = {"text/plain": _lines(repr(value))}
        outputs.append({"output_type": "display_data", "metadata": {}, "data": text})
    return outputs


def run(path: Path, draw: Draw | None = None) -> list[dict[str, Any]]:
    """The cells as they are after running all of them, in a temporary folder."""
    names: dict[str, object] = {"__name__": "__main__"}
    done = []
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for number, cell in enumerate(cells(path), start=1):
            if cell["cell_type"] == "code":
                cell = {**cell, "execution_count": number, "outputs": shown(cell, names, draw)}
            done.append(cell)
    return done


def notebook(made: list[dict[str, Any]]) -> str:
    """The file of a notebook with these cells."""
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    whole = {"cells": made, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


@contextlib.contextmanager
def drawing(width: int = 860) -> Iterator[Draw]:
    """Draws figures as PNG, in Chromium."""
    from plotly.offline import get_plotlyjs

    from tools.pages.figures import chromium

    with chromium() as browser:
        tab = browser.new_page()
        tab.set_content("<!DOCTYPE html><div id=figure></div>")
        tab.add_script_tag(content=get_plotlyjs())

        def draw(figure: go.Figure) -> bytes:
            size = {"format": "png", "width": width, "height": int(figure.layout.height or 400)}
            call = "async ([figure, size]) => await Plotly.toImage(figure, size)"
            url: str = tab.evaluate(call, [json.loads(figure.to_json()), size])
            return base64.b64decode(url.partition(",")[2])

        yield draw


if __name__ == "__main__":
    wanted = [Path(name).resolve() for name in sys.argv[1:]] or notebooks()
    with drawing() as draw:
        for path in wanted:
            write_text(path, notebook(run(path, draw)))
            print(path)
