"""Where a command's results go: a folder of its own for everything that is measured differently."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sinkscope.cli.options import slug
from sinkscope.errors import InputError
from sinkscope.files import check_writable

if TYPE_CHECKING:
    from typer import Context

Kind = Literal["measure", "intervene", "survey", "cache", "compare", "quantize", "calibrate", "check"]

INDIFFERENT = {"out", "as_json", "device", "device_map", "batch_size", "maps", "figure", "tables", "plan_only", "save"}
INDIFFERENT |= {"config", "full", "only", "skipped", "against", "fail_on", "explain", "submit"}
"""Options that change no number."""
NAMED = {"kind", "what", "scheme", "method"}  # options that the folder's name spells out
STATIC = ("figure.svg", "figure.pdf", "figure.png")
TABLES = ("table", "definitions", "heads", "depths", "tokens", "kinds", "first_tokens", "massive", "experts")
TRIAL = ("trial.nc", "trial.json", "table.csv", "figure.html")
FILES: Mapping[Kind, tuple[str, ...]] = {
    "measure": (
        *("measurement.nc", "figure.html", "domains.csv", "domains.json", *STATIC),
        *(f"{name}.{form}" for name in TABLES for form in ("csv", "parquet")),
    ),
    "intervene": (*TRIAL, "effect.json", *STATIC),
    "survey": ("survey.json", "survey.html", "table.csv", "table.md"),
    "compare": ("compare.json", "table.csv", "heads.csv", "figure.html"),
    "cache": (*TRIAL, "comparison.nc", "comparison.json"),
    "quantize": (
        *(*TRIAL, "study.nc", "study.json", "hazards.json", "sites.csv", "casts.csv", "advice.csv"),
        *("protected.json", "protected.safetensors", "prefix/prefix.json", "prefix/prefix.safetensors"),
        *("spared.json", "spared.safetensors"),  # their names before
    ),
    "calibrate": (*TRIAL, "choice.nc", "choice.json"),
    "check": ("card.json", "table.csv", "figure.html"),
}
"""What each command may leave in its folder."""

MARKS: Mapping[str, Kind] = {
    "measurement.nc": "measure",
    "domains.json": "measure",
    "effect.json": "intervene",
    "survey.json": "survey",
    "comparison.nc": "cache",
    "compare.json": "compare",
    "protected.json": "quantize",
    "spared.json": "quantize",
    "study.nc": "quantize",
    "hazards.json": "quantize",
    "choice.json": "calibrate",
    "card.json": "check",
}
"""The files by which a folder is known to be a command's."""


def results_folder(kind: Kind, out: Path | None, names: Sequence[str], words: Sequence[str], context: Context) -> Path:
    """The folder for results: `out`, or `sinkscope-KIND/NAMES-WORDS`, with a hash of all options not left at defaults.

    The hash also tells apart names that look alike as parts of a folder's name. Raises `InputError` for a folder that
    cannot be written, and for one that holds another command's results.
    """
    folder = out or Path(f"sinkscope-{kind}") / _called(names, words, context)
    check_writable(folder)
    for mark, owner in MARKS.items():
        if owner != kind and (folder / mark).exists():
            raise InputError(f"{folder} holds the results of sinkscope {owner} ({mark}): choose another folder")
    if (command := _trial_of(folder / "trial.json")) not in (None, kind):
        raise InputError(f"{folder} holds the results of sinkscope {command} (trial.json): choose another folder")
    return folder


def _trial_of(path: Path) -> str | None:
    """The command that wrote a trial; None where there is none."""
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["command"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def old_files(kind: Kind, folder: Path) -> Iterator[Path]:
    """What an earlier call of the command may have left there; of domains, the measurement in each one's folder."""
    if kind == "measure":
        yield from (folder / name / "measurement.nc" for name in _old_domains(folder / "domains.json"))
    yield from (folder / name for name in FILES[kind])


def _old_domains(path: Path) -> list[str]:
    try:
        return [Path(row["domain"]).name for row in json.loads(path.read_text(encoding="utf-8"))]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _called(names: Sequence[str], words: Sequence[str], context: Context) -> str:
    plain = [slug(Path(name).resolve().name if Path(name).exists() else name) for name in names]
    decisive = dict(sorted(changed(context).items()))
    if plain != list(names) or len(names) > 1:
        decisive["names"] = [str(Path(name).resolve()) if Path(name).exists() else name for name in names]
    title = "-".join([*plain, *words])
    if not decisive:
        return title
    return f"{title[:60]}-{hashlib.sha256(json.dumps(decisive).encode()).hexdigest()[:6]}"


def changed(context: Context) -> dict[str, Any]:
    """The options that have another value than their default, JSON-able; those that change no number are left out."""
    arguments = {param.name for param in context.command.params if param.param_type_name == "argument"}
    defaults = {param.name: param.default for param in context.command.params}
    return {
        name: _plain(value)
        for name, value in context.params.items()
        if name not in INDIFFERENT | NAMED | arguments and value not in (defaults.get(name), None, [], ())
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value.resolve())
    return [_plain(entry) for entry in value] if isinstance(value, list | tuple) else value
