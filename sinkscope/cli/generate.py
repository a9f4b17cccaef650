"""`sinkscope generate`: write text, or answer in a conversation; without end where it streams."""

from __future__ import annotations

import copy
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sinkscope.cli import options
from sinkscope.cli.command import ADVANCED, When
from sinkscope.cli.opening import open_model
from sinkscope.cli.options import LOADING, LoadingOptions
from sinkscope.cli.showing import peak_memory
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.report.terminal import note, only_json, plain, show_json

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import Cache, GenerationConfig

FULL = "full"
INTERRUPTED = "interrupted"
EVERY = 10.0  # seconds between remarks
SHOWN = 10_000  # characters of the text that --json repeats
WRITTEN = 256  # tokens to write by default, if they fit
STREAMED = 1024  # keys that a stream keeps at most by default
TEMPERATURE = 0.8  # for models whose generation config does not sample
COLDEST = 1e-6  # temperature to sample at
PENALIZED = 4096  # last tokens that a penalty on repetition sees
PENDING = 8  # tokens that may wait for the rest of a character

Distance = Literal["cache", "ceiling", "original"]
STREAMS = When(lambda values: values["stream"], "goes with --stream")
SAMPLES = When(lambda values: values["temperature"] != 0, "is not read at --temperature 0")
ROUNDS = When(lambda values: values["cache"] != FULL, "goes with a quantized --cache, such as kv4-kivi")


def generate(
    model: options.Model,
    prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The text to continue. Default: what is piped in, else a BOS.")
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
        typer.Option(
            min=0,
            max=1,
            help="Sample from the most likely tokens of this total probability.",
            rich_help_panel=ADVANCED,
        ),
        SAMPLES,
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option(min=0, help="Sample from the K most likely tokens; 0: from all.", rich_help_panel=ADVANCED),
        SAMPLES,
    ] = None,
    stream: Annotated[
        bool,
        typer.Option("--stream", help="Keep only the first and the last tokens: constant time and memory per token."),
    ] = False,
    endless: Annotated[
        bool, typer.Option("--endless", help="Continue after the end of the text, until Ctrl-C.")
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
            help="With --stream: the distance to the first tokens: as in the cache, just outside the window, or true.",
            rich_help_panel=ADVANCED,
        ),
        STREAMS,
    ] = "cache",
    cache: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="full, or a quantized one: kv2-kivi, kv3-kivi, kv4-kivi, kv8-kivi, kv2-token, … (bits, and what "
            "shares a range).",
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
    loading: LoadingOptions = LOADING,
    as_json: options.AsJson = False,
) -> None:
    """Write text as it comes, until it ends. The model's generation config decides how to sample unless options do."""
    if stream and cache != FULL:
        raise InputError("--stream drops tokens and --cache rounds them: choose one")
    if chat and endless:
        raise InputError("--endless does not go with --chat, whose answers end")
    if temperature is not None and 0 < temperature < COLDEST:
        raise InputError(
            f"--temperature {temperature:g} is under {COLDEST:g}, where logits overflow: 0 takes the most likely token"
        )
    prompts = _messages(prompt) if chat else iter([_prompt(prompt)])
    from sinkscope.model import load_tokenizer

    with only_json(as_json):
        writer = Writer(
            open_model(model, loading),
            load_tokenizer(model, revision=loading.revision, trust_remote_code=loading.trust_remote_code),
            streaming=(sinks, window, distance) if stream else None,
            quantized=None if cache == FULL else (cache, protect),
            sampling=(temperature, top_p, top_k, seed),
            limit=max_tokens,
            endless=endless,
            chat=chat,
        )
        for line in prompts:
            ids = writer.conversation(line) if chat else writer.prompt(line)
            words, stopped, speed = _write(writer, ids, as_json)
            writer.add_answer(words)
            if not as_json:
                note(f"{stopped}: {speed}")
            if stopped == INTERRUPTED:
                break
    if not as_json:
        return
    if chat and not writer.messages:
        raise InputError("--chat --json: there is no message: give --prompt TEXT, or pipe messages in, one a line")
    show_json(
        {
            "model": model,
            "prompt_tokens": writer.prompt_tokens,
            "stream": writer.streams,
            "cache": cache,
            "protect": protect,
            "sampling": writer.sampling,
            **speed.figures(),
            "stopped": stopped,
            "text": words,
            **({"messages": writer.messages} if chat else {}),
        }
    )


def _prompt(prompt: str | None) -> str:
    """The text to continue: the option, or what is piped in."""
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
    interactive = sys.stdin.isatty()
    if prompt is not None and not interactive:
        return
    while True:
        if interactive:
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


def _write(writer: Writer, ids: Tensor, quiet: bool) -> tuple[str, str, WritingSpeed]:
    """Print the text as it comes; returns the end of it, why it stopped, and its speed."""
    speed = writer.begin(ids)
    decoder, words, last_remark = Decoder(writer.tokenizer, ids[0].tolist()), "", time.monotonic()
    # Where text and remarks share a terminal, a remark gets a line of its own.
    shared = sys.stdout.isatty() and sys.stderr.isatty() and not quiet
    stopped = "written"
    try:
        for token in writer.tokens(ids, speed):
            if token in writer.ends:
                stopped = "the text ended"
                break
            text = plain(decoder.add(token)).plain
            words = (words + text)[-SHOWN:]
            if not quiet:
                print(text, end="", flush=True)
            if time.monotonic() - last_remark >= EVERY:
                last_remark = time.monotonic()
                note(f"\n{speed}" if shared else str(speed))
    except KeyboardInterrupt:
        stopped = INTERRUPTED
    if not quiet:
        print(flush=True)
    return words, stopped, speed


class Writer:
    """Reads what is new, writes until an end or a limit, and keeps its cache from one turn to the next.

    Args:
        model: a causal language model.
        tokenizer: its tokenizer.
        streaming: sinks, window (None: what the model has positions for) and distance of a `StreamingCache`.
        quantized: the name of a scheme, and the tokens that it keeps in full precision.
        sampling: temperature, top-p, top-k (None: as the generation config says) and the seed.
        limit: the most tokens of one text.
        endless: continue after the end of the text.
        chat: whether prompts are turns of a conversation.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        streaming: tuple[int, int | None, str] | None,
        quantized: tuple[str, str] | None,
        sampling: tuple[float | None, float | None, int | None, int],
        limit: int | None,
        endless: bool,
        chat: bool,
    ) -> None:
        import torch

        from sinkscope.hooks import family, is_encoder_decoder, position_limit

        if not model.can_generate() or is_encoder_decoder(model):
            raise UnsupportedModelError(f"family '{family(model)}' does not continue texts: it is no causal decoder")
        self.model, self.tokenizer, self.quantized, self.limit = model, tokenizer, quantized, limit
        self.config = generation_config(model, *sampling[:3])
        self.random = torch.Generator(device=model.device).manual_seed(sampling[3])
        if chat and not tokenizer.chat_template:
            raise InputError("--chat needs a chat template, which this model's tokenizer has not: give --prompt alone")
        turn = end_of_turn(tokenizer) if chat else set()
        self.ends = set() if endless else end_tokens(model, tokenizer) | turn
        self.positions = position_limit(model)
        self.streams = None if streaming is None else self._stream_options(*streaming)
        self.messages: list[dict[str, str]] = []
        self.prompt_tokens = 0
        self.cached: list[int] = []  # the tokens that the cache has read
        self.cache: Any = None

    @property
    def sampling(self) -> dict[str, Any]:
        """How tokens are drawn."""
        names = ("do_sample", "temperature", "top_p", "top_k")
        return {name: getattr(self.config, name) for name in names}

    def prompt(self, text: str) -> Tensor:
        """Token ids of a text, (1, position), after a BOS where the tokenizer has one."""
        import torch

        from sinkscope.data.tokenizer import tokenized

        ids = tokenized(self.tokenizer, text, add_special_tokens=True)["input_ids"] if text else []
        if self.tokenizer.bos_token_id is not None and ids[:1] != [self.tokenizer.bos_token_id]:
            ids = [self.tokenizer.bos_token_id, *ids]
        if not ids:
            raise InputError("nothing to continue, and the tokenizer has no BOS to begin with: give --prompt TEXT")
        return torch.tensor([ids], device=self.model.device)

    def conversation(self, text: str) -> Tensor:
        """Token ids of the whole conversation, (1, position), with `text` as its next message."""
        import torch

        from sinkscope.data.tokenizer import in_chat

        self.messages.append({"role": "user", "content": text})
        ids = in_chat(self.tokenizer, self.messages, add_generation_prompt=True)["input_ids"]
        return torch.tensor([ids], device=self.model.device)

    def add_answer(self, text: str) -> None:
        """Add what was written to the conversation, if there is one."""
        if self.messages:
            self.messages.append({"role": "assistant", "content": text})

    def begin(self, ids: Tensor) -> WritingSpeed:
        """Read all but the last of `ids`, except what the cache has read already."""
        import torch

        from sinkscope.caches import StreamingCache
        from sinkscope.hooks.inputs import check_ids
        from sinkscope.trials import Feed

        check_ids(self.model, {"input_ids": ids})
        self.prompt_tokens = ids.shape[1]
        self.room = self._limit(ids.shape[1])
        is_continued = self.cached == ids[0, : len(self.cached)].tolist()[: ids.shape[1] - 1]
        if self.cache is None or self.quantized or not is_continued:
            self.cache, self.cached = self._new_cache(), []
        feed, unread = Feed(self.model, self.cache, len(self.cached)), ids[:, len(self.cached) :]
        if unread.shape[1] > 1:
            if isinstance(self.cache, StreamingCache):
                self.cache.prefill(self.model, unread)
            else:
                with torch.inference_mode():
                    feed.read(unread[:, :-1])
        self.cached = ids[0, :-1].tolist()
        return WritingSpeed(self.model, self.cache)

    def tokens(self, ids: Tensor, speed: WritingSpeed) -> Iterator[int]:
        """What the model writes, up to the limit."""
        last = int(ids[0, -1])
        for token in write_tokens(self.model, ids, self.cache, self.config, self.random):
            speed.tokens += 1
            if self.messages:
                self.cached.append(last)
            last = token
            yield token
            if speed.tokens == self.room:
                return

    def _new_cache(self) -> Any:
        from transformers import DynamicCache

        from sinkscope.caches import StreamingCache
        from sinkscope.hooks import text_config

        if self.streams is not None:
            return StreamingCache(self.model, **self.streams)
        if self.quantized is None:
            return DynamicCache(config=text_config(self.model))
        return quantized_cache(self.model, *self.quantized)

    def _limit(self, length: int) -> int | None:
        """How many tokens may follow a prompt of that length. Raises `InputError` where they do not fit."""
        if self.streams is not None or self.positions is None:
            return self.limit or (None if self.streams else WRITTEN)
        room = self.positions - length
        if room < 1:
            raise InputError(
                f"the prompt has {length} tokens, but the model has positions for {self.positions}: shorten it, or "
                "--stream"
            )
        if self.limit is not None and self.limit > room:
            raise InputError(
                f"{length} tokens of prompt and {self.limit} to write, but the model has positions for "
                f"{self.positions}: at most --max-tokens {room}, or --stream"
            )
        return self.limit or min(WRITTEN, room)

    def _stream_options(self, sinks: int, window: int | None, distance: str) -> dict[str, Any]:
        fitting = min(STREAMED, self.positions or STREAMED) - sinks
        if window is None and fitting < 1:
            raise InputError(f"--sinks {sinks}: the model has positions for {self.positions}, which leaves no window")
        if window is not None and self.positions is not None and sinks + window > self.positions:
            note(
                f"warning: {sinks} sinks and a window of {window} are more than the {self.positions} positions of the "
                f"model: --window {max(1, self.positions - sinks)} stays within them"
            )
        return {"sinks": sinks, "window": fitting if window is None else window, "distance": distance}


def quantized_cache(model: Any, scheme: str, protect: str) -> Cache:
    """The cache of a scheme, which keeps the tokens of `protect`, in words, in full precision.

    Raises `InputError` for unknown names and words, and for schemes that no cache can store.
    """
    from sinkscope.quantization import scheme_named
    from sinkscope.sinks import parse

    named = scheme_named(scheme)
    if named.store is None:
        reason = "is only simulated" if named.caches else "is not about caches"
        raise InputError(f"--cache {scheme} {reason}: take kv4-kivi, kv2-kivi, kv4-token …")
    if protect.startswith("prefix"):
        raise InputError(
            f"--protect {protect}: a cache protects tokens of the prompt; begin the prompt with the prefix and give "
            "--protect first:N with the number of its tokens"
        )
    return named.store(model, parse(protect))


def generation_config(
    model: Any, temperature: float | None, top_p: float | None, top_k: int | None
) -> GenerationConfig:
    """The model's own generation config with these changes; temperature 0 takes the most likely token."""
    from transformers import GenerationConfig

    config = copy.deepcopy(getattr(model, "generation_config", None) or GenerationConfig())
    if temperature is None:
        temperature = (config.temperature or 1.0) if config.do_sample else TEMPERATURE
    config.do_sample = temperature > 0
    config.temperature = temperature or None
    if top_p is not None:
        config.top_p = top_p
    if top_k is not None:
        config.top_k = top_k or None
    if not config.do_sample:
        config.top_p = config.top_k = None
    return config


def end_tokens(model: Any, tokenizer: Any) -> set[int]:
    """Tokens that end a text: those of the generation config, the configuration and the tokenizer."""
    ends = [getattr(getattr(model, name, None), "eos_token_id", None) for name in ("generation_config", "config")]
    return {end for each in (*ends, tokenizer.eos_token_id) for end in _as_list(each)}


def end_of_turn(tokenizer: Any) -> set[int]:
    """The special token with which the chat template ends an answer; empty where it has none."""
    from sinkscope.data.tokenizer import in_chat

    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    question = in_chat(tokenizer, turns[:1], add_generation_prompt=True)["input_ids"]
    answer = in_chat(tokenizer, turns)["input_ids"][len(question) :]
    return set([token for token in answer if token in tokenizer.all_special_ids][:1])


def write_tokens(
    model: Any, ids: Tensor, cache: Cache, config: GenerationConfig, random: torch.Generator
) -> Iterator[int]:
    """The tokens that the model writes after `ids`, without end.

    Args:
        model: The model.
        ids: The tokens so far, (1, position).
        cache: A cache that holds all of them except the last.
        config: Transformers makes the processors of the logits from it. If it does not sample, the next token is the
            most likely one.
        random: The generator of samples.
    """
    import torch

    from sinkscope.trials import Feed

    feed = Feed(model, cache, ids.shape[1] - 1)
    model._prepare_special_tokens(config, device=ids.device)  # of which some processors read tensors
    processors = model._get_logits_processor(config, ids.shape[1], ids, device=ids.device)
    token, seen = ids[:, -1:], ids[:, -PENALIZED:]
    while True:
        with torch.inference_mode():
            logits = feed.read(token)
        if not bool((logits < math.inf).all()):  # -inf forbids a token
            raise InputError(
                f"the model's predictions after {feed.seen} token(s) are NaN or infinite: its weights are broken, or "
                "its numbers too large for their precision (--dtype float32)"
            )
        logits = processors(seen, logits)
        if config.do_sample:
            token = torch.multinomial(logits.softmax(-1), 1, generator=random)
        else:
            token = logits.argmax(-1, keepdim=True)
        seen = torch.cat([seen, token], 1)[:, -PENALIZED:]
        yield int(token)


class Decoder:
    """Text from tokens that come one by one. A token's text may depend on the one before, or be part of a character."""

    def __init__(self, tokenizer: Any, before: list[int]) -> None:
        self._tokenizer = tokenizer
        self._ids, self._read = before[-PENDING:], len(before[-PENDING:])

    def add(self, token: int) -> str:
        """The text that is complete now, without special tokens."""
        self._ids.append(token)
        before, now = (self._text(ids) for ids in (self._ids[: self._read], self._ids))
        if now.endswith("�") and len(self._ids) - self._read < PENDING:
            return ""
        self._ids, self._read = self._ids[self._read :], len(self._ids) - self._read
        return str(now[len(before) :])

    def _text(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))


@dataclass
class WritingSpeed:
    """Tokens and time since it was made, and the memory of the cache and the process."""

    model: Any
    cache: Cache
    tokens: int = 0
    start: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.start

    @property
    def per_second(self) -> float:
        return self.tokens / max(self.seconds, 1e-9)

    def figures(self) -> dict[str, Any]:
        """All of it, in tokens, seconds and bytes."""
        from sinkscope.caches.sizes import held_bytes

        return {
            "tokens": self.tokens,
            "seconds": round(self.seconds, 3),
            "tokens_per_second": round(self.per_second, 1),
            "seen": int(self.cache.get_seq_length()),
            "cache_bytes": held_bytes(self.cache),
            "peak_bytes": peak_memory(self.model),
        }

    def __str__(self) -> str:
        figures = self.figures()
        return (
            f"{self.tokens:,} tokens, {self.per_second:,.0f} a second, {figures['seen']:,} seen; cache "
            f"{figures['cache_bytes'] / 2**20:,.2f} MiB, peak {figures['peak_bytes'] / 2**20:,.0f} MiB"
        )


def _as_list(value: int | list[int] | None) -> list[int]:
    return [] if value is None else value if isinstance(value, list) else [value]
