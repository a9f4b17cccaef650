"""The fourth step of a command: a folder for its results, and which files are in it."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sinkscope import __version__
from sinkscope.errors import InputError
from sinkscope.files import check_writable, replacing, write_json, write_text
from sinkscope.report.terminal import note

if TYPE_CHECKING:
    from typer import Context

    from sinkscope.quantization import Hazards
    from sinkscope.trials import Trial

CommandName = Literal["measure", "intervene", "cache", "quantize", "calibrate", "check"]

WITHOUT_EFFECT = {"out", "as_json", "device", "device_map", "batch_size", "maps", "figure", "tables", "plan_only"}
WITHOUT_EFFECT |= {"config", "full", "only", "skipped", "against", "fail_on", "explain", "submit", "save"}
"""Options that change no stored number."""
SHOWING = {"out", "as_json", "full", "explain", "plan_only"}
"""Options that only say where results go, and what of them is printed."""
NAMED = {"kind", "kinds", "what", "scheme", "method"}  # options that are part of the folder's name
LONGEST = 60  # characters of a folder's name before its hash
PICTURES = ("figure.svg", "figure.pdf", "figure.png")
TABLES = ("table", "definitions", "heads", "depths", "tokens", "kinds", "first_tokens", "massive", "experts")
MANIFESTS = "manifest-*.json"  # of the measurement of one model, named by `call_digest`
TRIAL = ("figure.html", "trial.nc", "trial.json", "table.csv")
FILES: Mapping[CommandName, tuple[str, ...]] = {
    "measure": (
        *("measurement.nc", "figure.html", "domains.csv", "domains.json", *PICTURES),
        *(f"{name}.{form}" for name in TABLES for form in ("csv", "parquet")),
        *("survey.json", "survey.html", "table.md", "compare.json", "differences.csv", "differences.json"),
    ),
    "intervene": (*TRIAL, "effect.json", *PICTURES),
    "cache": (*TRIAL, "comparison.nc", "comparison.json"),
    "quantize": (
        *(*TRIAL, "study.nc", "study.json", "hazards.json", "sites.csv", "casts.csv", "advice.csv"),
        *("rescue.json", "schemes.json"),
        *("protected.json", "protected.safetensors", "prefix/prefix.json", "prefix/prefix.safetensors"),
        *("spared.json", "spared.safetensors"),  # their former names
    ),
    "calibrate": (*TRIAL, "choice.nc", "choice.json"),
    "check": ("card.json", "table.csv", "figure.html"),
}
"""The files that each command, or an earlier release of it, may leave in its folder."""

MARKS: Mapping[str, CommandName] = {
    "measurement.nc": "measure",
    "domains.json": "measure",
    "survey.json": "measure",
    "compare.json": "measure",
    "effect.json": "intervene",
    "comparison.nc": "cache",
    "protected.json": "quantize",
    "spared.json": "quantize",
    "study.nc": "quantize",
    "hazards.json": "quantize",
    "schemes.json": "quantize",
    "choice.json": "calibrate",
    "card.json": "check",
}
"""The files that show which command a folder belongs to."""


def results_folder(
    command: CommandName, out: Path | None, models: Sequence[str], words: Sequence[str], context: Context
) -> Path:
    """The folder for results: `out`, or `sinkscope-COMMAND/MODELS-WORDS`, with a hash of all options not at defaults.

    The hash also distinguishes models whose names look alike in a folder's name.

    Args:
        command: The command that writes.
        out: The folder of `--out`; None for the default.
        models: Names of the models.
        words: Further words of the folder's name, such as the input.
        context: The call, whose options are hashed.

    Raises `InputError` for a folder that cannot be written, and for one that holds the results of another command.
    """
    folder = out or Path(f"sinkscope-{command}") / _folder_name(models, words, context)
    check_writable(folder)
    for mark, owner in MARKS.items():
        if owner != command and (folder / mark).exists():
            raise InputError(f"{folder} holds the results of sinkscope {owner} ({mark}): choose another folder")
    if (owner_of_trial := _trial_command(folder / "trial.json")) not in (None, command):
        raise InputError(
            f"{folder} holds the results of sinkscope {owner_of_trial} (trial.json): choose another folder"
        )
    return folder


def old_files(command: CommandName, folder: Path) -> Iterator[Path]:
    """What an earlier call of the command may have left in `folder`, measurements of domains included."""
    if command == "measure":
        yield from sorted(folder.glob(MANIFESTS))
        yield from (folder / name / "measurement.nc" for name in _old_domains(folder / "domains.json"))
    yield from (folder / name for name in FILES[command])


def write_trial(
    trial: Trial,
    command: CommandName,
    folder: Path,
    *,
    hazards: Hazards | None = None,
    extra: Callable[[Path], None] | None = None,
) -> list[Path]:
    """Replace the trial in `folder` with its page, numbers and table; returns the files.

    Args:
        trial: What ran.
        command: The command whose folder this is.
        folder: Where the files go.
        hazards: Ranges to show on the page as well.
        extra: Writes further files into the folder it is called with.
    """
    from sinkscope.report.page import write_page
    from sinkscope.report.trial_page import trial_page

    page = trial_page(trial, hazards=hazards)
    with replacing(folder, partial(old_files, command)) as draft:
        trial.save(draft / "trial.nc")
        write_json(draft / "trial.json", trial.to_json())
        write_text(draft / "table.csv", trial.table(full=True).to_csv(index=False))
        write_page(page, draft / "figure.html")
        if extra is not None:
            extra(draft)
    return [folder / name for name in FILES[command] if (folder / name).exists()]


def unfinished_folder(folder: Path, context: Context, texts: str) -> Path:
    """Where, in the folder for results, a trial keeps what is done; options, texts and version determine its name.

    Says so where an interrupted call left something there.
    """
    unfinished = folder / f"unfinished-{call_digest(context, texts)[:8]}"
    if unfinished.exists():
        note(f"continues from {unfinished}")
    return unfinished


def call_digest(context: Context, read: str) -> str:
    """A hash of what is `read`, the version, and all options except those that only say where results go."""
    values = {name: str(value) for name, value in context.params.items() if name not in SHOWING}
    return hashlib.sha256(repr((read, __version__, sorted(values.items()))).encode()).hexdigest()


def clear_unfinished(folder: Path) -> None:
    """Remove, once results are written, what trials kept in their folder until then."""
    for unfinished in folder.glob("unfinished-*"):
        shutil.rmtree(unfinished, ignore_errors=True)


def check_formats(figure: str | None, tables: str = "csv") -> None:
    """Raise `InputError`, before anything is computed, where figures or tables cannot be written in that format."""
    if figure is not None:
        from sinkscope.files.pictures import require_export

        require_export()
    if tables == "parquet":
        from sinkscope.measurement.tables import require_parquet

        require_parquet()


def slug(model: str) -> str:
    """A model's name as part of a folder's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", model).strip("-.") or "model"


def changed_options(context: Context) -> dict[str, Any]:
    """The options that are not at their default, JSON-able, without those that change no number."""
    arguments = {param.name for param in context.command.params if param.param_type_name == "argument"}
    defaults = {param.name: param.default for param in context.command.params}
    return {
        name: _jsonable(value)
        for name, value in context.params.items()
        if name not in WITHOUT_EFFECT | NAMED | arguments and value not in (defaults.get(name), None, [], ())
    }


def _folder_name(models: Sequence[str], words: Sequence[str], context: Context) -> str:
    names = [slug(Path(name).resolve().name if Path(name).exists() else name) for name in models]
    content = dict(sorted(changed_options(context).items()))
    if names != list(models) or len(models) > 1:
        content["names"] = [str(Path(name).resolve()) if Path(name).exists() else name for name in models]
    title = "-".join([*names, *words])
    if not content:
        return title
    if len(title) > LONGEST:
        content["words"] = list(words)  # which the cut may leave out
    return f"{title[:LONGEST]}-{hashlib.sha256(json.dumps(content).encode()).hexdigest()[:6]}"


def _trial_command(path: Path) -> str | None:
    """The command that wrote a trial; None where there is none."""
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["command"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _old_domains(path: Path) -> list[str]:
    try:
        return [Path(row["domain"]).name for row in json.loads(path.read_text(encoding="utf-8"))]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _jsonable(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value.resolve())
    return [_jsonable(entry) for entry in value] if isinstance(value, list | tuple) else value
