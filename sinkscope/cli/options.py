"""Options that several commands share: which model, how it is loaded, and what it reads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import typer

from sinkscope.errors import InputError

BAD_INPUT = 2  # the exit code
InputKind = Literal["natural", "random", "repeated", "first-token"]
Bos = Literal["auto", "add", "double", "none"]
Dtype = Literal["auto", "float32", "bfloat16", "float16", "float64"]
Attention = Literal["sdpa", "eager", "flash_attention_2"]

Model = Annotated[str, typer.Argument(metavar="MODEL", help="A hub id, a local folder, or a shipped model (nano).")]
Kind = Annotated[InputKind, typer.Option("--input", help="What the model reads.")]
TextFile = Annotated[
    Path | None, typer.Option(help="A text file to read, not a corpus. A folder gives a row per file or folder in it.")
]
OneText = Annotated[Path | None, typer.Option(help="A text file to read, not a corpus. A folder is read as one text.")]
CorpusName = Annotated[str, typer.Option(help="Where natural text comes from: python, text:GLOB, hf:NAME.")]
Tokens = Annotated[int, typer.Option(min=2, help="Tokens in a sample.")]
Samples = Annotated[int, typer.Option(min=1, help="Number of samples.")]
Epsilon = Annotated[float, typer.Option(help="Threshold of the sink rate, between 0 and 1.")]
BosToken = Annotated[Bos, typer.Option(help="auto: a BOS before natural text if the model was trained with one.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 … Default: the GPU if there is one.")]
Precision = Annotated[Dtype, typer.Option(help="Precision of the weights; auto: as stored.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Samples in memory at once.")]
Attn = Annotated[Attention | None, typer.Option(help="The attention implementation of transformers.")]
ChatTemplate = Annotated[bool, typer.Option("--chat-template", help="Put the text into a user's message.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of texts, tokens and random draws.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]


def usable_device(name: str | None) -> str:
    """The device to use, tried out: a name that torch does not know or cannot reach is bad input."""
    import torch

    chosen = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(1, device=chosen)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device '{chosen}' cannot be used: {str(error).splitlines()[0]}") from error
    return chosen


def slug(model: str) -> str:
    """A model's name as part of a folder's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", model).strip("-.") or "model"
