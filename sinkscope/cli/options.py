"""The options that commands share, as frozen dataclasses: what models read, how they are loaded, what is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer
import yaml

from sinkscope.cli.command import ADVANCED, When, is_list
from sinkscope.errors import InputError, unknown
from sinkscope.names import SHIPPED, Media, media_folder

if TYPE_CHECKING:
    from typer import Context
else:
    Context = typer.Context.__base__  # Typer hands over an instance of its public class's base

BAD_INPUT = 2  # the exit code
AUTO = "auto"  # a corpus that follows from the model
AUTO_BATCH = 0  # a batch size that follows from the number of tokens
TEXT_KINDS = ("natural", "first-token")

InputKind = Literal["natural", "random", "repeated", "first-token"]
Bos = Literal["auto", "add", "double", "none"]
Split = Literal["validation", "all"]
Windows = Literal["within", "starts", "packed"]
Dtype = Literal["auto", "float32", "bfloat16", "float16", "float64"]
Attention = Literal["sdpa", "eager", "flash_attention_2"]


def is_saved(name: str) -> bool:
    """Whether `name` is a saved measurement, or a folder with one."""
    path = Path(name).expanduser()
    return path.suffix == ".nc" or (path / "measurement.nc").is_file()


def _medium(values: Mapping[str, Any]) -> str | None:
    """The option that replaces text."""
    return next((name for name in ("images", "audio") if values.get(name) is not None), None)


def _models(values: Mapping[str, Any]) -> list[str]:
    return [values["model"]] if "model" in values else [*(values.get("models") or ())]


def _kinds(values: Mapping[str, Any]) -> set[str]:
    """The kinds of input that are read; a file may list any of them."""
    if any(is_list(name) for name in _models(values)):
        return {*get_args(InputKind)}
    return {values["kind"]} if "kind" in values else {*(values.get("kinds") or ("natural",))}


def _measures(values: Mapping[str, Any]) -> bool:
    """Whether anything is loaded and measured: saved measurements are compared as they are."""
    names = _models(values)
    return not names or bool(values.get("checkpoints")) or not all(map(is_saved, names))


def _on_the_hub(name: str) -> bool:
    return name not in SHIPPED and (is_list(name) or not Path(name).expanduser().exists())


READS_TEXT = When(lambda values: _medium(values) is None, "goes without --images and --audio, which replace text")
READS_WORDS = When(
    lambda values: _kinds(values) & {*TEXT_KINDS}, "goes with natural and first-token input, which this run has none of"
)
READS_NATURAL = When(lambda values: "natural" in _kinds(values), "goes with natural input, which this run has none of")
READS_ROWS = When(
    lambda values: values.get("text") or str(values.get("corpus")).startswith(("text:", "hf:")),
    "names a field of rows: it goes with --text, --corpus text:GLOB or --corpus hf:NAME",
)
READS_CORPUS = When(lambda values: values.get("text") is None, "and --text exclude each other: a --text is read whole")
HAS_SPLITS = When(
    lambda values: values.get("corpus") != "prose", "goes with other corpora: prose, which is short, is read whole"
)
READS_MEDIA = When(_medium, "goes with --images or --audio: it accompanies each of them")
DRAWS = When(
    lambda values: _medium(values) is None or "controls" in values, "draws texts and controls, of which there are none"
)
MEASURES = When(_measures, "says how to measure, but all of these are saved measurements")
PRINTS = When(lambda values: not values["as_json"], "adds to what is printed: --json has all of it")
ON_THE_HUB = When(
    lambda values: any(_on_the_hub(name) for name in _models(values)), "goes with models on the hub: this run has none"
)


def _batch_size(text: str | int) -> int:
    """A number of samples, or `AUTO_BATCH`."""
    if str(text) == "auto":
        return AUTO_BATCH
    if not str(text).isdecimal() or int(text) < 1:
        raise typer.BadParameter(f"{text} is neither auto nor a number of samples of at least 1")
    return int(text)


def _threshold(value: float | None) -> float | None:
    if value is not None and not 0 < value < 1:
        raise typer.BadParameter(f"{value:g} is not between 0 and 1")
    return value


class _AsText(yaml.SafeLoader):
    """Reads values as text, as on a command line: the head 3.10 is not the number 3.1, and `on` is no truth value."""


_AsText.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in pairs if tag.endswith((":null", ":merge"))]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _read_config(context: Any, param: Any, path: Path | None) -> Path | None:
    """Make the options in a file the defaults of the command, which its command line overrides."""
    if path is None:
        return None
    try:
        values = _AsText(path.read_text(encoding="utf-8")).get_single_data()
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InputError(f"cannot read {path}: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise InputError(f"{path}: expected options and their values, such as  samples: 20")
    names = {option.lstrip("-"): each.name for each in context.command.params for option in each.opts}
    repeatable = {each.name for each in context.command.params if getattr(each, "multiple", False)}
    for name in values:
        if str(name) not in names or names[str(name)] == param.name:
            raise unknown(f"option in {path}", str(name), [known for known in names if names[known] != param.name])
    context.default_map = {
        **(context.default_map or {}),
        **{
            names[str(name)]: [value] if names[str(name)] in repeatable and not isinstance(value, list) else value
            for name, value in values.items()
        },
    }
    return path


# The options, one by one. Those of the panel "Advanced" say so.

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="A hub id, a folder, a GGUF file, or a shipped model (nano).")
]
Config = Annotated[
    Path | None,
    typer.Option(
        is_eager=True,
        callback=_read_config,
        help="A YAML file of options by name (samples: 20). Command-line options override it.",
        rich_help_panel=ADVANCED,
    ),
]
Text = Annotated[
    Path | None,
    typer.Option(
        help="Read this file instead of a corpus: plain text, or JSON lines, CSV or Parquet with one document per row. "
        "A folder is read as one text."
    ),
    READS_TEXT,
    READS_WORDS,
    MEASURES,
]
TextField = Annotated[
    str | None,
    typer.Option(
        "--field",
        metavar="NAME",
        help="The field that holds the text, in files of rows. Default: text.",
        rich_help_panel=ADVANCED,
    ),
    READS_TEXT,
    READS_WORDS,
    READS_ROWS,
    MEASURES,
]
CorpusName = Annotated[
    str,
    typer.Option(
        help="The source of natural text: prose (short English texts that are shipped), python, text:GLOB, hf:NAME. "
        "auto: python for models of this package, prose for others."
    ),
    READS_TEXT,
    READS_WORDS,
    READS_CORPUS,
    MEASURES,
]
SplitName = Annotated[
    Split,
    typer.Option(
        "--split",
        help="validation: the 2 percent of documents that training leaves out; all: every document.",
        rich_help_panel=ADVANCED,
    ),
    READS_TEXT,
    READS_WORDS,
    READS_CORPUS,
    HAS_SPLITS,
    MEASURES,
]
BosToken = Annotated[
    Bos,
    typer.Option(
        help="auto: put a BOS before natural text if the model was trained with one.", rich_help_panel=ADVANCED
    ),
    READS_TEXT,
    MEASURES,
]
ChatTemplate = Annotated[
    bool | None,
    typer.Option(
        "--chat-template/--raw-text",
        help="Put the text into a user's message, or leave it as it is. Default: a message if the model has a "
        "template.",
        rich_help_panel=ADVANCED,
    ),
    READS_TEXT,
    READS_NATURAL,
    MEASURES,
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 … Default: the GPU if there is one."), MEASURES]
Precision = Annotated[
    Dtype,
    typer.Option(
        metavar="DTYPE",
        help=f"Precision of the weights: {', '.join(get_args(Dtype))}. auto: as they are stored.",
        rich_help_panel=ADVANCED,
    ),
    MEASURES,
]
Revision = Annotated[
    str | None,
    typer.Option(help="Branch, tag or commit on the hub.", rich_help_panel=ADVANCED),
    MEASURES,
    ON_THE_HUB,
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        help="Run the Python code that comes with the model. Only for models whose code you trust.",
        rich_help_panel=ADVANCED,
    ),
    MEASURES,
]
DeviceMap = Annotated[
    str | None,
    typer.Option(
        metavar="MAP",
        help="Spread the model over devices and memory: auto, balanced, sequential. Not with --device.",
        rich_help_panel=ADVANCED,
    ),
    MEASURES,
]
Attn = Annotated[
    Attention | None,
    typer.Option(help="The attention implementation of transformers.", rich_help_panel=ADVANCED),
    MEASURES,
]
BatchSize = Annotated[
    int,
    typer.Option(
        parser=_batch_size,
        metavar="N|auto",
        help="Samples in memory at once, halved if they do not fit. auto: as many as make 8192 tokens, at most 64.",
        rich_help_panel=ADVANCED,
    ),
    MEASURES,
]
Seed = Annotated[
    int,
    typer.Option(min=0, help="Seed of texts, tokens and random draws.", rich_help_panel=ADVANCED),
    DRAWS,
    MEASURES,
]
Samples = Annotated[int, typer.Option(min=1, help="Number of samples."), MEASURES]
Tokens = Annotated[int, typer.Option(min=2, help="Tokens per sample."), MEASURES]
Epsilon = Annotated[
    float,
    typer.Option(callback=_threshold, help="Threshold of the sink rate, between 0 and 1.", rich_help_panel=ADVANCED),
]
SinkEpsilon = Annotated[
    float | None,
    typer.Option(callback=_threshold, help="Threshold of measured and online sinks.", rich_help_panel=ADVANCED),
]
Kind = Annotated[InputKind, typer.Option("--input", help="What the model reads."), READS_TEXT]
WindowsOption = Annotated[
    Windows,
    typer.Option(
        "--windows",
        help="Where samples of natural text start. within: anywhere in a document; starts: at the start of each "
        "document; packed: anywhere in the concatenation of all documents.",
        rich_help_panel=ADVANCED,
    ),
    READS_TEXT,
    READS_NATURAL,
    MEASURES,
]
Images = Annotated[
    Path | None,
    typer.Option(
        "--images",
        metavar="DIR",
        help="Read the images in a folder, sorted by name, instead of text.",
        rich_help_panel=ADVANCED,
    ),
    MEASURES,
]
Audio = Annotated[
    Path | None,
    typer.Option(
        "--audio",
        metavar="DIR",
        help="Read the WAV files in a folder, sorted by name, instead of text.",
        rich_help_panel=ADVANCED,
    ),
    MEASURES,
]
Prompt = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="The text that accompanies each image or recording, for models that read both.",
        rich_help_panel=ADVANCED,
    ),
    READS_MEDIA,
]
Explain = Annotated[bool, typer.Option("--explain", help="Print what the words of the verdict mean."), PRINTS]
Tolerance = Annotated[
    float,
    typer.Option(min=0, help="KL in nats per token that counts as free.", rich_help_panel=ADVANCED),
]
Figure = Annotated[
    Literal["svg", "pdf", "png"] | None,
    typer.Option(help="Also write the figure as a file for papers. Needs the extra figures.", rich_help_panel=ADVANCED),
]
TableFormat = Annotated[
    Literal["csv", "parquet"],
    typer.Option("--tables", help="The format of tables. Parquet needs the extra data.", rich_help_panel=ADVANCED),
]
Out = Annotated[
    Path | None,
    typer.Option(
        help="Folder for the results; those of an earlier call are replaced. Default: sinkscope-COMMAND/MODEL, with a "
        "hash of the options that are not at their defaults."
    ),
]
PlanOnly = Annotated[bool, typer.Option("--plan", help="Print the time and memory it would take; write nothing.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


@dataclass(frozen=True, kw_only=True)
class LoadingOptions:
    """How a model is loaded."""

    device: Device = None
    dtype: Precision = "auto"
    revision: Revision = None
    trust_remote_code: Trust = False
    device_map: DeviceMap = None
    attn: Attn = None

    def __post_init__(self) -> None:
        if self.device is not None and self.device_map is not None:
            raise InputError("--device and --device-map exclude each other")


@dataclass(frozen=True, kw_only=True)
class RunningOptions(LoadingOptions):
    """How a model is loaded and run."""

    batch_size: BatchSize = 8
    seed: Seed = 0

    def batch_of(self, tokens: int) -> int:
        """The batch size, for samples of that many tokens where it is "auto"."""
        return self.batch_size if self.batch_size != AUTO_BATCH else max(1, min(64, 8192 // tokens))


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """Where natural text comes from, and what precedes it."""

    text: Text = None
    corpus: CorpusName = AUTO
    field: TextField = None
    split: SplitName = "validation"
    bos: BosToken = "auto"
    chat_template: ChatTemplate = None


@dataclass(frozen=True, kw_only=True)
class MediaOptions:
    """Images or recordings in place of text."""

    images: Images = None
    audio: Audio = None
    prompt: Prompt = None

    def __post_init__(self) -> None:
        if self.images is not None and self.audio is not None:
            raise InputError("--images and --audio exclude each other: measure one after the other")

    @property
    def medium(self) -> tuple[Media, Path] | None:
        """The folder of images or recordings that replaces text; None for text."""
        return media_folder(self.images, self.audio)


@dataclass(frozen=True, kw_only=True)
class SamplingOptions(MediaOptions, TextOptions):
    """What a model reads, apart from the kind of input, and how much of it."""

    tokens: Tokens = 64
    samples: Samples = 100
    windows: WindowsOption = "within"
    epsilon: Epsilon = 0.3


@dataclass(frozen=True, kw_only=True)
class InputOptions(SamplingOptions):
    """One kind of input."""

    kind: Kind = "natural"

    @property
    def name(self) -> str:
        """What the model reads, in one word."""
        return self.kind if self.medium is None else self.medium[0]


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """What is written and printed."""

    out: Out = None
    plan_only: PlanOnly = False
    as_json: AsJson = False


LOADING, RUNNING, TEXTS, MEDIA, SAMPLING, INPUTS, OUTPUT = (
    LoadingOptions(),
    RunningOptions(),
    TextOptions(),
    MediaOptions(),
    SamplingOptions(),
    InputOptions(),
    OutputOptions(),
)
