"""Options that several commands share: which model, how it is loaded, and what it reads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from sinkscope.cli.commands import When
from sinkscope.errors import InputError, unknown
from sinkscope.names import SHIPPED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typer import Context
else:
    Context = typer.Context.__base__  # what Typer hands over is of its public class's base

BAD_INPUT = 2  # the exit code
InputKind = Literal["natural", "random", "repeated", "first-token"]
Bos = Literal["auto", "add", "double", "none"]
Medium = tuple[Literal["images", "audio"], Path]  # what is read in the place of text, and where it lies
Split = Literal["validation", "all"]
Dtype = Literal["auto", "float32", "bfloat16", "float16", "float64"]
Attention = Literal["sdpa", "eager", "flash_attention_2"]

TEXT_KINDS = ("natural", "first-token")


def _medium(values: Mapping[str, Any]) -> str | None:
    """The option of what takes the place of text."""
    return next((name for name in ("images", "audio") if values.get(name) is not None), None)


def _kinds(values: Mapping[str, Any]) -> set[str]:
    """The kinds of input that are read; all that a survey's file may name."""
    if any(name.endswith(SPEC_FILES) for name in values.get("models") or ()):
        return {*get_args(InputKind)}
    return {values["kind"]} if "kind" in values else {*(values.get("inputs") or ("natural",))}


def _measures(values: Mapping[str, Any]) -> bool:
    """Whether anything is loaded and measured: saved measurements are compared as they are."""
    return not values.get("things") or not all(map(is_saved, values["things"]))


def is_saved(thing: str) -> bool:
    """Whether a name is that of a saved measurement, or of a folder with one."""
    path = Path(thing).expanduser()
    return path.suffix == ".nc" or (path / "measurement.nc").is_file()


SPEC_FILES = (".yaml", ".yml", ".json")
OF_TEXT = When(
    lambda values: _medium(values) is None, "goes without --images and --audio, which take the place of text"
)
OF_KINDS = When(
    lambda values: _kinds(values) & {*TEXT_KINDS}, "goes with natural and first-token input, which this run has none of"
)
OF_NATURAL = When(lambda values: "natural" in _kinds(values), "goes with natural input, which this run has none of")
OF_ROWS = When(
    lambda values: values.get("text") or str(values.get("corpus")).startswith(("text:", "hf:")),
    "names a field of rows: it goes with --text, --corpus text:GLOB or --corpus hf:NAME",
)
OF_CORPUS = When(lambda values: values.get("text") is None, "and --text exclude each other: a --text is read whole")
OF_SPLIT = When(
    lambda values: values.get("corpus") != "prose", "goes with other corpora: prose, which is short, is read whole"
)
OF_MEDIA = When(_medium, "goes with --images or --audio: it is what stands beside each of them")
OF_DRAWS = When(
    lambda values: _medium(values) is None or "controls" in values, "draws texts and controls, of which there are none"
)
OF_MEASURED = When(_measures, "says how to measure: all of these are saved measurements")
OF_PEOPLE = When(lambda values: not values["as_json"], "adds to what is printed: --json has all of it")
OF_THE_HUB = When(
    lambda values: any(_on_the_hub(name) for name in _models(values)), "is of the hub, where none of these models is"
)


def _models(values: Mapping[str, Any]) -> list[str]:
    return [values["model"]] if "model" in values else [*(values.get("models") or values.get("things") or ())]


def _on_the_hub(name: str) -> bool:
    return name not in SHIPPED and (name.endswith(SPEC_FILES) or not Path(name).expanduser().exists())


Model = Annotated[str, typer.Argument(metavar="MODEL", help="A hub id, a local folder, or a shipped model (nano).")]
Models = Annotated[
    list[str], typer.Argument(metavar="MODEL...", help="Hub ids, local folders, or shipped models (nano), one by one.")
]


def _configured(context: Any, param: Any, path: Path | None) -> Path | None:
    """The options in a file take the place of defaults; what is typed takes theirs."""
    if path is None:
        return None
    import yaml

    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InputError(f"cannot read {path}: {' '.join(str(error).split())}") from error
    if not isinstance(given, dict):
        raise InputError(f"{path}: expected options and their values, such as  samples: 20")
    given = {"on" if name is True else name: value for name, value in given.items()}  # YAML 1.1 reads `on` as a boolean
    names = {option.lstrip("-"): each.name for each in context.command.params for option in each.opts}
    for name in given:
        if str(name) not in names or names[str(name)] == param.name:
            raise unknown(f"option in {path}", str(name), [known for known in names if names[known] != param.name])
    context.default_map = {**(context.default_map or {}), **{names[str(name)]: value for name, value in given.items()}}
    return path


Config = Annotated[
    Path | None,
    typer.Option(
        is_eager=True,
        callback=_configured,
        help="A YAML file of options by their names (samples: 20); what is typed beside it counts more.",
    ),
]
Kind = Annotated[InputKind, typer.Option("--input", help="What the model reads."), OF_TEXT, OF_MEASURED]
TextFile = Annotated[
    Path | None,
    typer.Option(
        help="A file to read, not a corpus: plain text, or JSON lines, CSV, Parquet with a document a row. "
        "Of a folder, each file and each folder in it is measured by itself, a row each."
    ),
    OF_TEXT,
    OF_KINDS,
]
OneText = Annotated[
    Path | None,
    typer.Option(
        help="A file to read, not a corpus: plain text, or JSON lines, CSV, Parquet with a document a row. A folder is "
        "read as one text."
    ),
    OF_TEXT,
    OF_KINDS,
    OF_MEASURED,
]
TextField = Annotated[
    str | None,
    typer.Option("--field", metavar="NAME", help="The field that is the text, in files of rows. Default: text."),
    OF_TEXT,
    OF_KINDS,
    OF_ROWS,
    OF_MEASURED,
]
WindowsOf = Annotated[
    Literal["within", "starts", "packed"],
    typer.Option(
        "--windows",
        help="Of natural text. within: any stretch of a document; starts: the first of each; packed: of the documents "
        "one behind the other.",
    ),
    OF_TEXT,
    OF_NATURAL,
    OF_MEASURED,
]
CorpusName = Annotated[
    str,
    typer.Option(
        help="Where natural text comes from: prose (short English texts that come along), python, text:GLOB, hf:NAME. "
        "auto: python for models of this package, prose for others."
    ),
    OF_TEXT,
    OF_KINDS,
    OF_CORPUS,
    OF_MEASURED,
]
SplitName = Annotated[
    Split,
    typer.Option(
        "--split",
        help="validation: the documents of a corpus that training leaves out, 2 percent; all: every document.",
    ),
    OF_TEXT,
    OF_KINDS,
    OF_CORPUS,
    OF_SPLIT,
    OF_MEASURED,
]
Images = Annotated[
    Path | None,
    typer.Option("--images", metavar="DIR", help="Read the images in a folder, sorted by name, instead of text."),
    OF_MEASURED,
]
Audio = Annotated[
    Path | None,
    typer.Option("--audio", metavar="DIR", help="Read the WAV files in a folder, sorted by name, instead of text."),
    OF_MEASURED,
]
Prompt = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="What stands beside each image or recording, for models that read text too."),
    OF_MEDIA,
]
Tokens = Annotated[int, typer.Option(min=2, help="Tokens in a sample."), OF_MEASURED]
Samples = Annotated[int, typer.Option(min=1, help="Number of samples."), OF_MEASURED]
Epsilon = Annotated[float, typer.Option(help="Threshold of the sink rate, between 0 and 1.")]
BosToken = Annotated[
    Bos, typer.Option(help="auto: a BOS before natural text if the model was trained with one."), OF_TEXT, OF_MEASURED
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 … Default: the GPU if there is one."), OF_MEASURED]
Precision = Annotated[
    Dtype,
    typer.Option(
        metavar="DTYPE",
        help=f"Precision of the weights: {', '.join(get_args(Dtype))}; auto is what they are stored in.",
    ),
    OF_MEASURED,
]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub."), OF_MEASURED, OF_THE_HUB]


def _samples_at_once(given: str | int) -> int:
    """A number of samples, or AUTO."""
    if str(given) == "auto":
        return AUTO
    if not str(given).isdecimal() or int(given) < 1:
        raise typer.BadParameter(f"{given} is no number of samples of at least 1, nor auto")
    return int(given)


AUTO = 0  # in the place of a batch size that was left to us
BatchSize = Annotated[
    int,
    typer.Option(
        parser=_samples_at_once,
        metavar="N|auto",
        help="Samples in memory at once, halved where they do not fit; auto: as many as make 8192 tokens, at most 64.",
    ),
    OF_MEASURED,
]
DeviceMap = Annotated[
    str | None,
    typer.Option(
        metavar="MAP",
        help="Spread the model over devices, and over memory: auto, balanced, sequential. Not with --device.",
    ),
    OF_MEASURED,
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code", help="Run Python code that comes with the model. Only for models that you trust as code."
    ),
    OF_MEASURED,
]
Attn = Annotated[Attention | None, typer.Option(help="The attention implementation of transformers."), OF_MEASURED]
ChatTemplate = Annotated[
    bool | None,
    typer.Option(
        "--chat-template/--raw-text",
        help="Put the text into a user's message, or leave it as it is. Default: a message where the model has a "
        "template.",
    ),
    OF_TEXT,
    OF_NATURAL,
    OF_MEASURED,
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of texts, tokens and random draws."), OF_DRAWS, OF_MEASURED]
Figure = Annotated[
    Literal["svg", "pdf", "png"] | None,
    typer.Option(help="The figure as a file for papers, too (extra figures)."),
]
Tables = Annotated[
    Literal["csv", "parquet"],
    typer.Option("--tables", help="What tables are written as. Parquet needs the extra data."),
]
PlanOnly = Annotated[
    bool,
    typer.Option(
        "--plan", help="Say how long it would take and how much memory, estimated from one batch; write nothing."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]


def check_written(figure: str | None, tables: str = "csv") -> None:
    """Raise `InputError`, before anything is computed, where figures or tables cannot be written as asked."""
    if figure is not None:
        from sinkscope.pictures import require_export

        require_export()
    if tables == "parquet":
        from sinkscope.measurement.tables import require_parquet

        require_parquet()


def usable_device(name: str | None) -> str:
    """The device to use, tried out: a name that torch does not know or cannot reach is bad input."""
    import torch

    chosen = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(1, device=chosen)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device '{chosen}' cannot be used: {str(error).splitlines()[0]}") from error
    return chosen


def place(device: str | None, device_map: str | None) -> dict[str, str | None]:
    """Where a model is loaded, as arguments of `load`. Raises `InputError` for both."""
    if device_map is None:
        return {"device": usable_device(device)}
    if device is not None:
        raise InputError("--device and --device-map exclude each other")
    return {"device_map": device_map}


def loaded(model: str, context: Context) -> Any:
    """The model of a command, as its options say how it is loaded, without a bar for its weights."""
    from transformers.utils.logging import disable_progress_bar

    from sinkscope.model import load

    disable_progress_bar()
    given = context.params
    how: dict[str, Any] = {name: given[name] for name in ("dtype", "revision", "attn", "trust_remote_code")}
    return load(model, **how | place(given["device"], given["device_map"]))


def batch_of(size: int, tokens: int) -> int:
    """A batch size as it was given, or for samples of so many tokens."""
    return size if size != AUTO else max(1, min(64, 8192 // tokens))


def medium_of(context: Any) -> Medium | None:
    """The folder of images or of recordings that takes the place of text, None for text.

    Raises `InputError` for both.
    """
    images, audio = context.params.get("images"), context.params.get("audio")
    if images is not None and audio is not None:
        raise InputError("--images and --audio exclude each other: measure one after the other")
    if images is not None:
        return "images", images
    return None if audio is None else ("audio", audio)


def slug(model: str) -> str:
    """A model's name as part of a folder's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", model).strip("-.") or "model"
