"""`sinkscope generate`: write text, for ever where it streams."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sinkscope.cli import options
from sinkscope.errors import InputError
from sinkscope.report.terminal import note, only_json, plain, show_json

if TYPE_CHECKING:
    from sinkscope.cli.writing.cost import Cost

EVERY = 10.0  # seconds between remarks
SHOWN = 10_000  # characters of the text that --json repeats
FULL = "full"
Distance = Literal["cache", "ceiling", "original"]


def generate(
    context: options.Context,
    model: options.Model,
    prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What is continued. Default: what is piped in, else a BOS.")
    ] = None,
    stream: Annotated[
        bool,
        typer.Option(
            "--stream", help="Keep the first tokens and the last ones only, so that time and memory stay as they are."
        ),
    ] = False,
    sinks: Annotated[int, typer.Option(min=0, help="Of --stream: first tokens that are kept.")] = 4,
    window: Annotated[int, typer.Option(min=1, help="Of --stream: last tokens that are kept, the query included.")] = (
        1020
    ),
    distance: Annotated[
        Distance,
        typer.Option(
            help="Of --stream: how far the first tokens are: as in the cache, just outside the window, truly."
        ),
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
    ] = "none",
    spare: Annotated[str | None, typer.Option(hidden=True)] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens to write. Default: no end with --stream, 256 without.")
    ] = None,
    temperature: Annotated[float, typer.Option(min=0, help="0: always the most likely token.")] = 0.8,
    seed: options.Seed = 0,
    device: options.Device = None,
    dtype: options.Precision = "auto",
    revision: options.Revision = None,
    trust_remote_code: options.Trust = False,
    device_map: options.DeviceMap = None,
    attn: options.Attn = None,
    as_json: options.AsJson = False,
) -> None:
    """Write text as it comes. With --stream without an end, until Ctrl-C, at the same speed and in the same memory."""
    if stream and cache != FULL:
        raise InputError("--stream drops tokens and --cache rounds them: choose one")
    if spare is not None:
        note(f"--spare is now --protect: --protect {spare}")
        protect = spare
    if cache == FULL and protect != "none":
        raise InputError(f"--protect {protect} goes with a quantized --cache, such as kv4-kivi")
    text = _prompt(prompt)
    from sinkscope.cli.writing.cost import Cost
    from sinkscope.model import load_tokenizer

    with only_json(as_json):
        loaded = options.loaded(model, context)
        tokenizer = load_tokenizer(model, revision=revision, trust_remote_code=trust_remote_code)
        ids = _ids(tokenizer, text).to(loaded.device)
        limit = max_tokens or (None if stream else 256)
        quantized = None if cache == FULL else (cache, protect)
        cost = Cost(_cache(loaded, ids, (sinks, window, distance) if stream else None, quantized, limit))
        words, stopped = _write(loaded, tokenizer, ids, cost, limit, temperature, seed, as_json, endless=stream)
    if as_json:
        settings = {"sinks": sinks, "window": window, "distance": distance} if stream else None
        show_json(
            {
                "model": model,
                "prompt_tokens": ids.shape[1],
                "stream": settings,
                "cache": cache,
                "protect": protect,
                **cost.figures(),
                "stopped": stopped,
                "text": words,
            }
        )
    else:
        note(f"{stopped}: {cost}")


def _prompt(prompt: str | None) -> str:
    """The text to continue: given, or piped in."""
    if prompt is not None or sys.stdin is None or sys.stdin.isatty():
        return prompt or ""
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise InputError(f"what is piped in is not UTF-8 text: {error}") from error


def _ids(tokenizer: Any, text: str) -> Any:
    """Token ids of a prompt, (1, position), behind a BOS where the tokenizer has one."""
    import torch

    ids = tokenizer(text, add_special_tokens=True)["input_ids"] if text else []
    if tokenizer.bos_token_id is not None and ids[:1] != [tokenizer.bos_token_id]:
        ids = [tokenizer.bos_token_id, *ids]
    if not ids:
        raise InputError("nothing to continue, and the tokenizer has no BOS to begin with: give --prompt TEXT")
    return torch.tensor([ids])


def _cache(
    model: Any,
    ids: Any,
    streaming: tuple[int, int, Distance] | None,
    quantized: tuple[str, str] | None,
    limit: int | None,
) -> Any:
    """The cache, which has read the prompt but for its last token."""
    import torch
    from transformers import DynamicCache

    from sinkscope.caches import StreamingCache
    from sinkscope.hooks import text_config

    if streaming is not None:
        sinks, window, distance = streaming
        cache = StreamingCache(model, sinks, window, distance)
        if ids.shape[1] > 1:
            cache.prefill(model, ids)
        return cache
    config = text_config(model)
    if quantized is None:
        made: Any = DynamicCache(config=config)
    else:
        from sinkscope.cli.writing.rounded import rounded_cache

        made = rounded_cache(model, *quantized)
    most = getattr(config, "max_position_embeddings", None)
    if isinstance(most, int) and ids.shape[1] + (limit or 0) > most:
        raise InputError(
            f"{ids.shape[1]} tokens of prompt and {limit} to write, but the model has positions for {most}: write "
            "fewer, or --stream"
        )
    if ids.shape[1] > 1:
        with torch.inference_mode():
            model(ids[:, :-1], past_key_values=made, use_cache=True)
    return made


def _write(
    model: Any,
    tokenizer: Any,
    ids: Any,
    cost: Cost,
    limit: int | None,
    temperature: float,
    seed: int,
    quiet: bool,
    *,
    endless: bool,
) -> tuple[str, str]:
    """Show the text as it comes; returns the end of it, and why it ended."""
    from sinkscope.cli.writing.tokens import Decoded, written

    decoded, words, said = Decoded(tokenizer, ids[0].tolist()), "", time.monotonic()
    # On one terminal with the text, a remark stands on a line of its own.
    between = sys.stdout.isatty() and sys.stderr.isatty() and not quiet
    stopped = "written"
    try:
        for token in written(model, ids, cost.cache, temperature, seed):
            cost.tokens += 1
            if not endless and token == tokenizer.eos_token_id:
                stopped = "the text ended"
                break
            part = plain(decoded.add(token)).plain
            words = (words + part)[-SHOWN:]
            if not quiet:
                print(part, end="", flush=True)
            if cost.tokens == limit:
                break
            if time.monotonic() - said >= EVERY:
                said = time.monotonic()
                note(f"\n{cost}" if between else str(cost))
    except KeyboardInterrupt:
        stopped = "interrupted"
    if not quiet:
        print(flush=True)
    return words, stopped
