"""`sinkscope generate`: write text, or answer in a conversation; for ever where it streams."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sinkscope.cli import options
from sinkscope.cli.commands import When
from sinkscope.errors import InputError
from sinkscope.report.terminal import note, only_json, plain, show_json

if TYPE_CHECKING:
    from sinkscope.cli.writing.cost import Cost

EVERY = 10.0  # seconds between remarks
SHOWN = 10_000  # characters of the text that --json repeats
FULL = "full"
Distance = Literal["cache", "ceiling", "original"]
STREAMS = When(lambda values: values["stream"], "goes with --stream")
SAMPLES = When(lambda values: values["temperature"] != 0, "is not read at --temperature 0")
ROUNDS = When(lambda values: values["cache"] != FULL, "goes with a quantized --cache, such as kv4-kivi")


def generate(
    context: options.Context,
    model: options.Model,
    prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What is continued. Default: what is piped in, else a BOS.")
    ] = None,
    chat: Annotated[
        bool,
        typer.Option("--chat", help="Keep a conversation in the model's chat format; each line of input is a message."),
    ] = False,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens to write at most. Default: no limit with --stream, else 256 or what fits."),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, help="0: always the most likely token. Default: the model's own, else 0.8.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Sample from the most likely tokens of this total probability."),
        SAMPLES,
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(min=0, help="Sample from the K most likely tokens; 0: from all."), SAMPLES
    ] = None,
    stream: Annotated[
        bool,
        typer.Option("--stream", help="Keep the first and the last tokens only: constant time and memory a token."),
    ] = False,
    endless: Annotated[
        bool, typer.Option("--endless", help="Write on after the text has ended, until Ctrl-C.")
    ] = False,
    sinks: Annotated[int, typer.Option(min=0, help="With --stream: first tokens to keep."), STREAMS] = 4,
    window: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="With --stream: last tokens to keep, the query included. Default: with --sinks what the model has "
            "positions for, at most 1024.",
        ),
        STREAMS,
    ] = None,
    distance: Annotated[
        Distance,
        typer.Option(
            help="With --stream: how far away the first tokens are: as in the cache, just outside the window, truly."
        ),
        STREAMS,
    ] = "cache",
    cache: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="full, or a quantized one: kv2-kivi, kv3-kivi, kv4-kivi, kv8-kivi, kv2-token, … (bits, and who shares "
            "a range).",
        ),
    ] = FULL,
    protect: Annotated[
        str,
        typer.Option(
            metavar="WORDS",
            help="With a quantized --cache: tokens kept in full precision: measured, outliers, first:4, ids:2, none …",
        ),
        ROUNDS,
    ] = "none",
    seed: Annotated[options.Seed, SAMPLES] = 0,
    device: options.Device = None,
    dtype: options.Precision = "auto",
    revision: options.Revision = None,
    trust_remote_code: options.Trust = False,
    device_map: options.DeviceMap = None,
    attn: options.Attn = None,
    as_json: options.AsJson = False,
) -> None:
    """Write text as it comes, until it ends. Sampling follows the model's generation config unless options say else."""
    if stream and cache != FULL:
        raise InputError("--stream drops tokens and --cache rounds them: choose one")
    if chat and endless:
        raise InputError("--endless does not go with --chat, whose answers end")
    lines = _messages(prompt) if chat else iter([_prompt(prompt)])
    from sinkscope.cli.writing.writer import Writer
    from sinkscope.model import load_tokenizer

    with only_json(as_json):
        loaded = options.loaded(model, context)
        tokenizer = load_tokenizer(model, revision=revision, trust_remote_code=trust_remote_code)
        writer = Writer(
            loaded,
            tokenizer,
            streaming=(sinks, window, distance) if stream else None,
            quantized=None if cache == FULL else (cache, protect),
            sampling=(temperature, top_p, top_k, seed),
            limit=max_tokens,
            endless=endless,
            chat=chat,
        )
        for line in lines:
            ids = writer.conversation(line) if chat else writer.prompt(line)
            words, stopped, cost = _write(writer, ids, as_json)
            writer.answered(words)
            if not as_json:
                note(f"{stopped}: {cost}")
            if stopped == INTERRUPTED:
                break
    if not as_json:
        return
    show_json(
        {
            "model": model,
            "prompt_tokens": writer.prompt_tokens,
            "stream": writer.streams,
            "cache": cache,
            "protect": protect,
            "sampling": writer.sampled,
            **cost.figures(),
            "stopped": stopped,
            "text": words,
            **({"messages": writer.messages} if chat else {}),
        }
    )


INTERRUPTED = "interrupted"


def _prompt(prompt: str | None) -> str:
    """The text to continue: given, or piped in."""
    if prompt is not None or sys.stdin is None or sys.stdin.isatty():
        return prompt or ""
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise InputError(f"what is piped in is not UTF-8 text: {error}") from error


def _messages(prompt: str | None) -> Iterator[str]:
    """The messages of a conversation: the prompt, then lines of input until an empty one or its end."""
    if prompt is not None:
        yield prompt
    if sys.stdin is None:
        return
    asking = sys.stdin.isatty()
    if prompt is not None and not asking:
        return
    while True:
        if asking:
            print("> ", end="", file=sys.stderr, flush=True)
        try:
            line = sys.stdin.readline()
        except UnicodeDecodeError as error:
            raise InputError(f"what is piped in is not UTF-8 text: {error}") from error
        except KeyboardInterrupt:
            return
        if not line.strip():
            return
        yield line.strip()


def _write(writer: Any, ids: Any, quiet: bool) -> tuple[str, str, Cost]:
    """Show the text as it comes; returns the end of it, why it ended, and what it cost."""
    from sinkscope.cli.writing.tokens import Decoded

    cost = writer.begin(ids)
    decoded, words, said = Decoded(writer.tokenizer, ids[0].tolist()), "", time.monotonic()
    # On one terminal with the text, a remark stands on a line of its own.
    between = sys.stdout.isatty() and sys.stderr.isatty() and not quiet
    stopped = "written"
    try:
        for token in writer.tokens(ids, cost):
            if token in writer.ends:
                stopped = "the text ended"
                break
            part = plain(decoded.add(token)).plain
            words = (words + part)[-SHOWN:]
            if not quiet:
                print(part, end="", flush=True)
            if time.monotonic() - said >= EVERY:
                said = time.monotonic()
                note(f"\n{cost}" if between else str(cost))
    except KeyboardInterrupt:
        stopped = INTERRUPTED
    if not quiet:
        print(flush=True)
    return words, stopped, cost
