"""What Sphinx reads: the pages of `docs/`, the tutorials, a page per room of the package, the papers of the house, the
study's pages."""

from __future__ import annotations

import importlib
import inspect
import shutil
import subprocess
import sys
from pathlib import Path

from sinkscope.files import write_text
from tools.pages import DOCS, ROOT
from tools.site import notebooks
from tools.site.names import TOP, Public, explained, note_of
from tools.site.text import escaped, restructured

HOUSE = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}
STUDY = "replication/docs/build.py"  # where the folder is there
CONTENTS = """```{toctree}
:caption: The replication of Gu et al. 2025
:hidden:
:glob:

replication/*
```
"""
SHORT = 60  # characters of a constant that is shown as it is
MOST = 12  # names of a catalog that are listed


def gather(folder: Path) -> None:
    """Write all sources of the site into a folder that is not there yet."""
    shutil.copytree(DOCS, folder)
    for name, page in HOUSE.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        write_text(folder / page, text.replace("](docs/", "]("))
    for path in notebooks.notebooks():
        text, pictures = notebooks.page(path)
        write_text(folder / "tutorials" / f"{path.stem}.md", text)
        for name, content in pictures.items():
            (folder / "tutorials" / name).write_bytes(content)
    for name, text in api_pages().items():
        write_text(folder / "api" / name, text)
    if (ROOT / STUDY).is_file():
        subprocess.run([sys.executable, ROOT / STUDY, folder / "replication"], check=True)
        index = folder / "index.md"
        write_text(index, f"{index.read_text(encoding='utf-8')}\n{CONTENTS}")


def api_pages() -> dict[str, str]:
    """A page per room, by file name."""
    rooms = explained().items()
    return {f"{home.rpartition('.')[2]}.rst": _room(home, here, elsewhere) for home, (here, elsewhere) in rooms}


def _room(home: str, here: list[Public], elsewhere: list[tuple[Public, Public]]) -> str:
    title = home if home == TOP else f"{TOP}.{home.rpartition('.')[2]}"
    about = restructured(inspect.cleandoc(importlib.import_module(home).__doc__ or "").splitlines())
    parts = [f"{title}\n{'=' * len(title)}", "\n".join(about), f".. py:module:: {home}"]
    if elsewhere:
        links = ", ".join(f":py:obj:`{each.name} <{other.full}>`" for each, other in elsewhere)
        parts.append(f"Exported here too, and explained where they are at home: {links}.")
    return "\n\n".join([*parts, *map(_entry, here)]) + "\n"


def _entry(public: Public) -> str:
    if public.kind == "data":
        return _data(public)
    options = "\n   :members:" if public.kind != "function" else ""
    if inspect.isclass(public.value) and public.value.__bases__ != (object,):
        options += "\n   :show-inheritance:"
    return f".. auto{public.kind}:: {public.full}{options}"


def _data(public: Public) -> str:
    value, note = public.value, note_of(public)
    kind = type(value).__name__
    lines = [f".. py:data:: {public.full}", "   :module:"]  # the name is whole: the page's module is not put before it
    shown = repr(value)
    if isinstance(value, str | int | float | tuple) and len(shown) <= SHORT and "\\" not in shown:
        lines.append(f"   :value: {shown}")
    body = restructured(note.splitlines()) if note else []
    if isinstance(value, dict):
        names = ", ".join(f"``{name}``" for name in list(value)[:MOST] if isinstance(name, str))
        more = f" and {len(value) - MOST} more" if len(value) > MOST else ""
        body += ["", f"A dictionary of {len(value)}: {names}{more}."] if names else []
    elif not body and len(shown) > SHORT:
        body += [escaped(f"A `{kind}`: `{shown}`" if "`" not in shown and " at 0x" not in shown else f"A `{kind}`.")]
    return "\n".join([*lines, "", *(f"   {line}".rstrip() for line in body)])
