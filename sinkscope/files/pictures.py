"""Figures as files for papers: SVG, PDF, PNG."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

from sinkscope.errors import InputError, unknown
from sinkscope.files import writing

Format = Literal["svg", "pdf", "png"]


def write_figure(figure: Any, path: str | Path) -> None:
    """Write a Plotly figure as SVG, PDF or PNG (at twice its size), by the path's suffix, whole or not at all.

    Needs the extra `figures` and a Chromium or Chrome, which draws it. Raises `InputError` for another suffix, if one
    of the two is missing, and if nothing can be written.
    """
    target = Path(path)
    kind = target.suffix.lower().removeprefix(".")
    if kind not in get_args(Format):
        raise unknown("figure format", kind or str(path), get_args(Format))
    require_export()
    try:
        image = figure.to_image(format=kind, scale=2 if kind == "png" else 1)
    except (RuntimeError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise InputError(f"cannot draw {target.name}: {reason}") from error
    with writing(target) as draft:
        draft.write_bytes(image)


def require_export() -> None:
    """Raises `InputError` if the package that exports figures is missing."""
    try:
        import kaleido  # noqa: F401
    except ImportError as error:
        raise InputError("static figures need the package kaleido: pip install 'sinkscope[figures]'") from error
