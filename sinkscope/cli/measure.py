"""`sinkscope measure`: the attention sink of one model on one input."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.progress import Progress

from sinkscope.errors import InputError
from sinkscope.files import check_writable
from sinkscope.report.terminal import note, only_json, plain, show, show_json, stderr

if TYPE_CHECKING:
    pass

InputKind = Literal["natural", "random", "repeated", "first-token"]
Bos = Literal["auto", "add", "none"]
Dtype = Literal["auto", "float32", "bfloat16", "float16", "float64"]
Attention = Literal["sdpa", "eager", "flash_attention_2"]


def measure(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A hub id, a local folder, or a shipped model (nano).")],
    kind: Annotated[InputKind, typer.Option("--input", help="What the model reads.")] = "natural",
    text: Annotated[Path | None, typer.Option(help="A text file instead of the corpus `python`.")] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens in a sample.")] = 64,
    samples: Annotated[int, typer.Option(min=1, help="Samples.")] = 100,
    epsilon: Annotated[float, typer.Option(help="Threshold of the sink rate, between 0 and 1.")] = 0.3,
    bos: Annotated[
        Bos, typer.Option(help="auto: a BOS before natural text if the model was trained with one.")
    ] = "auto",
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 …; the GPU if there is one.")] = None,
    dtype: Annotated[Dtype, typer.Option(help="auto: as stored.")] = "auto",
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples in memory at once.")] = 8,
    attn: Annotated[Attention | None, typer.Option(help="The attention implementation of transformers.")] = None,
    chat_template: Annotated[bool, typer.Option("--chat-template", help="Put the text into a user's turn.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Which text, tokens and bootstrap draws.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the results; sinkscope-measure/MODEL-INPUT unless given.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout.")] = False,
) -> None:
    """Measure where the attention sink of a model is, and how strong."""
    folder = out or Path("sinkscope-measure") / f"{_slug(model)}-{kind}"
    check_writable(folder)
    from transformers.utils.logging import disable_progress_bar

    from sinkscope import probes
    from sinkscope.cli.inputs import inputs_for
    from sinkscope.cli.results import FILES, show_results, write_results
    from sinkscope.model import load
    from sinkscope.probes.metrics import check_epsilon

    check_epsilon(epsilon)
    disable_progress_bar()  # of loading weights; downloads keep theirs
    with only_json(as_json):
        subject = load(model, dtype=dtype, device=_device(device), revision=revision, attn=attn)
        inputs = inputs_for(
            subject,
            model,
            kind,
            tokens=tokens,
            samples=samples,
            seed=seed,
            text=text,
            bos=bos,
            revision=revision,
            chat=chat_template,
        )
        note(f"{model}: {inputs.description}; first: {inputs.first}")
        with Progress(console=stderr(), transient=True, disable=not stderr().is_terminal) as bar:
            task = bar.add_task("measuring", total=None)
            measured = probes.measure(
                subject,
                inputs.input_ids,
                batch_size=batch_size,
                progress=lambda done, total: bar.update(task, completed=done, total=total),
                about={"kind": kind, "description": inputs.description, "first": inputs.first, "seed": seed},
            )
        write_results(measured, folder, f"{model}, {kind} input", epsilon)
    if as_json:
        summary = measured.to_json(epsilon)
        show_json({**summary, "model": model, "input": kind, "input_details": summary["input"]})
    else:
        show_results(measured, f"{model} on {kind} input", epsilon)
        show(plain(f"written: {', '.join(str(folder / name) for name in FILES)}"))


def _device(name: str | None) -> str:
    """The device to use, tried out: a name that torch does not know or cannot reach is bad input."""
    import torch

    chosen = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(1, device=chosen)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device '{chosen}' cannot be used: {str(error).splitlines()[0]}") from error
    return chosen


def _slug(model: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", model).strip("-.") or "model"
