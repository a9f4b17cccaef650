"""One self-contained HTML page: figures, their numbers as tables, and where they come from.

The page opens from disk without network: plotly.js (4.8 MB) is inlined once. Its content security policy allows exactly
the scripts written here, by their hashes, and no connection at all; so text from models and corpora cannot run even if
an escape were missing. The templates escape everything but this package's own scripts and styles. Nothing in a page
depends on the time of writing: equal contents give equal bytes.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import plotly.graph_objects as go
from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from sinkscope.files import write_text
from sinkscope.report.table import PageTable, frame_table, width_limits
from sinkscope.theme import DARK, GREEN, GRID, INK, MONO, MUTED, OCHRE, PAPER, SERIES, SINK

__all__ = ["Headline", "Page", "Section", "Widget", "json_text", "render", "write_page"]

WITHOUT_SCRIPTS = "figure, .observatory, .reading, .filters, .selected, td button { display: none !important; }"
"""Hides what would be an empty box if no script fills it."""

LONG = 100_000  # characters of data; longer ones are packed

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


class Embedded(NamedTuple):
    """Data inside a page's script element: JSON, or gzip in base64 if `packed`."""

    text: str
    packed: bool


@dataclass(frozen=True)
class Headline:
    """One number a reader should remember: `Headline("11.6 %", "sink rate, softmax")`."""

    value: str
    label: str


@dataclass(frozen=True)
class Widget:
    """An interactive part of a section, brought to life by the page's scripts.

    `template` is one of this package's templates, which reads `values`. `data`: what the scripts read, JSON-able values
    by the id of the element that holds them.
    """

    template: str
    data: Mapping[str, Any]
    values: Mapping[str, Any] = field(default_factory=dict)

    def embedded(self) -> Iterator[tuple[str, Embedded]]:
        """The data as the page holds them, by id."""
        for id_, content in self.data.items():
            text = json_text(content)
            packed = len(text) >= LONG
            yield id_, Embedded(_packed(text) if packed else text, packed)


@dataclass(frozen=True)
class Section:
    """Figures, a sentence on what they show, and their numbers.

    `figures` are named; several are drawn side by side if there is room, each under its name. `unfolded` shows the
    table at once; otherwise a toggle that the keyboard reaches shows it. Sections that follow each other and answer one
    `question` are folded under it; the first such group of a page is open.
    """

    title: str
    sentence: str
    figures: Mapping[str, go.Figure] = field(default_factory=dict)
    table: pd.DataFrame | None = None
    unfolded: bool = False
    widget: Widget | None = None
    question: str = ""

    def shown_table(self) -> PageTable:
        """The table as a page shows it."""
        assert self.table is not None
        return frame_table(self.table, f"{self.title}: numbers")


@dataclass(frozen=True)
class Page:
    """What a report says. All text is plain: it is escaped when the page is rendered.

    Attributes:
        answer: a few sentences above everything else, for readers who read no further.
        map_first: place the first map of the section of heads next to the answer.
        scripts: names of this package's assets that the widgets need, in order; so are `styles`.
    """

    title: str
    lead: str
    headlines: Sequence[Headline] = ()
    sections: Sequence[Section] = ()
    provenance: Mapping[str, str] = field(default_factory=dict)
    scripts: Sequence[str] = ()
    styles: Sequence[str] = ()
    answer: Sequence[str] = ()
    map_first: bool = False


@dataclass(frozen=True)
class SectionGroup:
    """Numbered sections of one `question`, the first such group of a page `open`; or sections without a question."""

    question: str
    sections: Sequence[tuple[int, Section]]
    open: bool

    @property
    def first(self) -> int:
        """The number of its first section."""
        return self.sections[0][0]

    @property
    def heading(self) -> str:
        """The element of a section's title."""
        return "h3" if self.question else "h2"

    @property
    def titles(self) -> str:
        """What is inside, in a line."""
        return ", ".join(section.title[:1].lower() + section.title[1:] for _, section in self.sections)


def write_page(page: Page, path: str | Path) -> Path:
    """Write the page atomically and return its path."""
    write_text(path, render(page))
    return Path(path)


def render(page: Page) -> str:
    """The page as HTML text."""
    style = "".join(_asset(name) for name in ("page.css", *page.styles)).replace("/*colors*/", _css_colors())
    style += _templates().get_template("tables.css").render(widths=width_limits())
    plotly, packed = _plotly()
    waiting = (f"unpacked.then(() => {{\n{_asset(name)}\n}});" for name in page.scripts)
    scripts = [_asset("unpack.js"), _asset("page.js").replace('"DARK"', json.dumps(DARK)), *waiting]
    return (
        _templates()
        .get_template("page.html")
        .render(
            page=page,
            groups=_grouped(page.sections),
            policy=_policy(plotly, *scripts),
            style=Markup(style),
            without_scripts=Markup(WITHOUT_SCRIPTS),
            plotly=packed,
            scripts=[Markup(script) for script in scripts],
        )
    )


def json_text(content: Any) -> Markup:
    """JSON that cannot end the script element it is in. Raises `ValueError` for NaN and infinities."""
    return htmlsafe_json_dumps(content, allow_nan=False, separators=(",", ":"))


@cache
def _templates() -> Environment:
    """The templates of this package. What a template asks for and does not get is an error."""
    environment = Environment(
        loader=PackageLoader("sinkscope.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # plotly writes <, > and / as \\u003c and the like: its JSON cannot end the script element
    environment.filters["plotly_json"] = lambda figure: Markup(figure.to_json())
    return environment


def _grouped(sections: Sequence[Section]) -> list[SectionGroup]:
    """The sections, numbered from 1, those of one question together."""
    groups: list[SectionGroup] = []
    for question, numbered in groupby(enumerate(sections, start=1), lambda pair: pair[1].question):
        first = bool(question) and not any(group.question for group in groups)
        groups.append(SectionGroup(question, list(numbered), first))
    return groups


@cache
def _plotly() -> tuple[str, str]:
    """The library that draws, and the same packed as the page holds it: a third as long."""
    code = _lines(get_plotlyjs())
    return code, _packed(code)


def _packed(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _policy(*scripts: str) -> str:
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    hashes = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:"


def _css_colors() -> str:
    light = "".join(f"--{name}:{color};" for name, color in _CSS_COLORS.items())
    dark = "".join(f"--{name}:{DARK[color]};" for name, color in _CSS_COLORS.items())
    return f":root{{{light}--mono:{MONO}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}"


def _asset(name: str) -> str:
    return _lines((resources.files(__package__) / "assets" / name).read_text(encoding="utf-8"))


def _lines(text: str) -> str:
    """HTML parsers turn CR LF into LF, which would change a script's hash."""
    return text.replace("\r\n", "\n").replace("\r", "\n")
