"""One self-contained HTML page: figures, their numbers as tables, and where they come from.

The page opens from disk without network: plotly.js (4.8 MB) is inlined once. Its content security policy allows exactly
the scripts written here, by their hashes, and no connection at all; so text from models and corpora cannot run even if
an escape were forgotten. Nothing in it depends on the time of writing: equal contents give equal bytes.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from importlib import resources
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from sinkscope.files import write_text
from sinkscope.report import table as tables
from sinkscope.theme import DARK, GREEN, GRID, INK, MONO, MUTED, OCHRE, PAPER, SERIES, SINK

WITHOUT_SCRIPTS = "figure, .observatory, .reading, .filters, .selected, td button { display: none !important; }"
"""Hides what would be an empty box where no script fills it."""

LONG = 100_000  # characters of data; longer ones are packed

FIGURES = "<!--figures-->"
"""Where a widget's markup takes in the figures of its section."""

_CSS_COLORS = {
    "ink": INK,
    "muted": MUTED,
    "line": GRID,
    "panel": PAPER,
    "accent": SERIES[0],
    "sink": SINK,
    "good": GREEN,
    "open": OCHRE,
}


@dataclass(frozen=True)
class Headline:
    """One number a reader should remember: `Headline("11.6 %", "sink rate, softmax")`."""

    value: str
    label: str


@dataclass(frozen=True)
class Widget:
    """An interactive part of a section, brought to life by the page's scripts.

    `markup` is HTML written in this package, never text from outside; the section's figures take the place of `FIGURES`
    in it. `data`: what the scripts read, JSON-able values by the id of the element that holds them.
    """

    markup: str
    data: Mapping[str, Any]


@dataclass(frozen=True)
class Section:
    """Figures, a sentence on what the reader is looking at, and their numbers.

    `figures` are named; several stand side by side where there is room, each under its name. `unfolded` shows the table
    at once; otherwise it is behind a keyboard-reachable toggle. Sections that follow each other and answer one
    `question` are folded under it; the first such group of a page is open.
    """

    title: str
    sentence: str
    figures: Mapping[str, go.Figure] = field(default_factory=dict)
    table: pd.DataFrame | None = None
    unfolded: bool = False
    widget: Widget | None = None
    question: str = ""


@dataclass(frozen=True)
class Page:
    """What a report says. All text is plain: it is escaped when the page is rendered.

    `answer`: what a reader should know who reads no further, a few sentences above everything else. `first`: markup,
    written in this package, of the one figure that a first screen shows with the cards.
    `scripts` and `styles` are names of this package's assets that the widgets need, in order.
    """

    title: str
    lead: str
    headlines: Sequence[Headline] = ()
    sections: Sequence[Section] = ()
    provenance: Mapping[str, str] = field(default_factory=dict)
    scripts: Sequence[str] = ()
    styles: Sequence[str] = ()
    answer: Sequence[str] = ()
    first: str = ""


def write_page(page: Page, path: str | Path) -> Path:
    """Write the page atomically and return its path."""
    write_text(path, render(page))
    return Path(path)


def render(page: Page) -> str:
    """The page as HTML text."""
    style = "".join(_asset(name) for name in ("page.css", *page.styles)).replace("/*colors*/", _css_colours())
    style += tables.style()
    script = _asset("page.js").replace('"DARK"', json.dumps(DARK))
    plotly, packed = _plotly()
    waiting = (f"unpacked.then(() => {{\n{_asset(name)}\n}});" for name in page.scripts)
    scripts = [_asset("unpack.js"), script, *waiting]
    running = "\n".join(f"<script>{script}</script>" for script in scripts)
    sections, links = _grouped(page.sections)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_policy(plotly, *scripts)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(page.title)}</title>
<style>{style}</style>
<noscript><style>{WITHOUT_SCRIPTS}</style></noscript>
</head>
<body>
<a class="skip" href="#main">Skip to the figures</a>
<header>
<p class="mark">sinkscope</p>
<h1>{escape(page.title)}</h1>
{_top(page)}
<nav aria-label="On this page"><ol>{links}</ol></nav>
</header>
<main id="main">
<noscript><p class="sentence">Figures need JavaScript, which is off: their numbers stand in the tables.</p></noscript>
{sections}
</main>
{_provenance(page.provenance)}
<script type="text/plain" id="plotly">{packed}</script>
{running}
</body>
</html>
"""


def _top(page: Page) -> str:
    """What stands above everything: the answer, the lead, the cards. With a figure the cards and the figure come right
    after the first sentence, so that a screen shows them, and the rest of the text beside or below the figure."""
    lead = f'<p class="lead">{escape(page.lead)}</p>'
    if not page.first:
        return f"{_answer(page.answer)}{lead}\n{_headlines(page.headlines)}"
    beside = f'<div class="first">{page.first}<div>{_answer(page.answer[1:])}{lead}</div></div>'
    return f"{_answer(page.answer[:1])}{_headlines(page.headlines)}\n{beside}"


@cache
def _plotly() -> tuple[str, str]:
    """The library that draws, and the same packed as the page holds it: a third as long."""
    code = _lines(get_plotlyjs())
    return code, _packed(code)


def _packed(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _grouped(sections: Sequence[Section]) -> tuple[str, str]:
    """All sections, those of a question folded under it, and the links that lead to them."""
    parts, links = [], []
    opened = False
    for question, group in groupby(enumerate(sections, start=1), lambda pair: pair[1].question):
        inside = list(group)
        first = inside[0][0]
        body = "\n".join(_section(index, section, "h3" if question else "h2") for index, section in inside)
        if not question:
            parts.append(body)
            links += [_link(f"s{index}", section.title) for index, section in inside]
            continue
        state = "" if opened else " open"
        opened = True
        names = ", ".join(section.title[:1].lower() + section.title[1:] for _, section in inside)
        parts.append(
            f'<details class="question" id="q{first}"{state}><summary><h2>{escape(question)}</h2>'
            f'<span class="inside">{escape(names)}</span></summary>\n{body}\n</details>'
        )
        links.append(_link(f"q{first}", question))
    return "\n".join(parts), "".join(links)


def _link(place: str, title: str) -> str:
    return f'<li><a href="#{place}">{escape(title)}</a></li>'


def _answer(sentences: Iterable[str]) -> str:
    said = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)
    return f'<div class="answer">{said}</div>\n' if said else ""


def _section(index: int, section: Section, heading: str) -> str:
    parts = [
        f'<section id="s{index}" aria-labelledby="t{index}">',
        f'<{heading} class="title" id="t{index}">{escape(section.title)}</{heading}>',
        f'<p class="sentence" id="c{index}">{escape(section.sentence)}</p>',
    ]
    figures = _figures(index, section)
    if section.widget is not None:
        parts.append(_widget(section.widget, figures))
    elif figures:
        parts.append(figures)
    if section.table is not None:
        parts.append(_table(section, section.table))
    return "\n".join([*parts, "</section>"])


def _figures(index: int, section: Section) -> str:
    named = len(section.figures) > 1 or section.widget is not None
    figures = (_figure(index, *item, named=named) for item in enumerate(section.figures.items(), start=1))
    return f'<div class="figures">{"".join(figures)}</div>' if section.figures else ""


def _widget(widget: Widget, figures: str) -> str:
    data = "\n".join(_data(name, json_text(content)) for name, content in widget.data.items())
    return f"{widget.markup.replace(FIGURES, figures)}\n{data}"


def _data(name: str, text: str) -> str:
    if len(text) < LONG:
        return f'<script type="application/json" id="{escape(name)}">{text}</script>'
    return f'<script type="text/plain" id="{escape(name)}" data-packed>{_packed(text)}</script>'


def json_text(content: Any) -> str:
    """JSON that cannot end the script element it stands in. Raises `ValueError` for NaN and infinities."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _figure(index: int, number: int, item: tuple[str, go.Figure], named: bool) -> str:
    name, figure = item
    key = f"f{index}-{number}"
    caption = f"<figcaption>{escape(name)}</figcaption>" if named else ""
    # The height is reserved, so that the page does not jump while the figures are drawn.
    height = int(figure.layout.height or 360)
    content = figure.to_json()  # with <, > and / as \u003c and the like: it cannot end the script element
    return f"""<figure>{caption}
<div class="plot" data-figure="{key}" role="img" aria-label="{escape(name)}" aria-describedby="c{index}"
 style="min-height:{height}px"></div>
<div class="controls"></div>
<script type="application/json" id="{key}">{content}</script>
</figure>"""


def _table(section: Section, frame: pd.DataFrame) -> str:
    label = f"{escape(section.title)}: numbers"
    table = f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">{html_table(frame)}</div>'
    return table if section.unfolded else f"<details><summary>The numbers</summary>{table}</details>"


def html_table(frame: pd.DataFrame) -> str:
    """An escaped HTML table; the first column heads its row, numeric columns are aligned right, NaN is a dash.

    Where it is wider than its place, its rows become cards (`report.table`).
    """
    names = [str(column) for column in frame.columns]
    numbers = [bool(pd.api.types.is_numeric_dtype(frame[column])) for column in frame.columns]
    texts = [[_text(value) for value in row] for row in frame.itertuples(index=False, name=None)]
    head = "".join(
        f'<th scope="col"{_side(number)}>{escape(name)}</th>' for name, number in zip(names, numbers, strict=True)
    )
    rows = "\n".join(f"<tr>{_cells(row, names, numbers)}</tr>" for row in texts)
    kind = tables.fitting(names, texts, numbers)
    return f'<table class="{kind}"><thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table>'


def _cells(row: Sequence[str], names: Sequence[str], numbers: Sequence[bool]) -> str:
    about = list(zip(row, names, numbers, strict=True))[1:]
    rest = "".join(tables.cell(escape(text), text, name, number) for text, name, number in about)
    return f'<th scope="row"{_side(numbers[0])}>{escape(row[0])}</th>{rest}'


def _side(number: bool) -> str:
    return ' class="number"' if number else ""


def _text(value: Any) -> str:
    if value is None or value is pd.NA:
        return "–"
    if isinstance(value, float):
        return "–" if value != value else f"{value:.4g}"
    return str(value)


def _headlines(headlines: Sequence[Headline]) -> str:
    cards = "".join(f"<div><dd>{escape(card.value)}</dd><dt>{escape(card.label)}</dt></div>" for card in headlines)
    return f'<dl class="headlines">{cards}</dl>' if cards else ""


def _provenance(facts: Mapping[str, str]) -> str:
    rows = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items())
    return f'<footer><h2>Where these numbers come from</h2><dl class="facts">{rows}</dl></footer>'


def _policy(*scripts: str) -> str:
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:"


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _css_colours() -> str:
    light = "".join(f"--{name}:{color};" for name, color in _CSS_COLORS.items())
    dark = "".join(f"--{name}:{DARK[color]};" for name, color in _CSS_COLORS.items())
    return f":root{{{light}--mono:{MONO}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}"


def _asset(name: str) -> str:
    return _lines((resources.files(__package__) / "assets" / name).read_text(encoding="utf-8"))


def _lines(text: str) -> str:
    """HTML parsers turn CR LF into LF, which would change a script's hash."""
    return text.replace("\r\n", "\n").replace("\r", "\n")
