"""Links inside a built site: each leads to a file, and to a place in it, that is there."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


@dataclass
class Parsed(HTMLParser):
    """The places of a page, and where it leads."""

    ids: set[str] = field(default_factory=set)
    targets: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what the tag names, and what it refers to."""
        given = {name: value for name, value in attrs if value is not None}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        self.targets += [given[name] for name in ("href", "src") if name in given]


def parsed(path: Path) -> Parsed:
    """A page, read."""
    page = Parsed()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def broken(site: Path) -> list[str]:
    """A line for each link of a page of the site that leads nowhere, and for each thing loaded from elsewhere."""
    pages = {path.resolve(): parsed(path) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        for target in dict.fromkeys(page.targets):
            reason = _wrong(target, path, pages)
            if reason:
                found.append(f"{path.relative_to(site.resolve())}: {target}: {reason}")
    return found


def _wrong(target: str, path: Path, pages: dict[Path, Parsed]) -> str:
    parts = urlsplit(target)
    if parts.scheme or parts.netloc:
        return ""
    place = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not place.exists():
        return "no such file"
    anchor = unquote(parts.fragment)
    if anchor and place in pages and anchor not in pages[place].ids:
        return f"no such place in {place.name}"
    return ""
