"""What a token costs in a stream: compared with a full cache of the same stored length, with recomputing the window,
and far into a text; and how well a stream predicts text that is longer than the model's context.

8 layers, width 512, 8 heads, fp32, one thread's own time; the shipped `nano` for the text; for 100,000 tokens one by
one, a model of 2 layers and width 64, in which the cache takes a larger part of the time.

`--model NAME`: steps and reading of that model only.

Run: python -m benchmarks.streaming [--model NAME] [--save]      # 10 minutes
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

import sinkscope as ss
from benchmarks.memory import keep
from benchmarks.sides import Figure, at_least, at_most, beside, in_turns, report

ROUNDS, NEAR, LONG, TEXT = 60, 1000, 100_000, 20_000
SINKS = 4
NAME = sys.argv[sys.argv.index("--model") + 1] if "--model" in sys.argv else ""


def model_of(width: int = 512, layers: int = 8) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=2048,
        hidden_size=width,
        intermediate_size=width * 43 // 16,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 64,
        max_position_embeddings=8192,
    )
    return LlamaForCausalLM(config).eval()


def nano() -> Any:
    return ss.load("nano").to_llama().eval()


@torch.no_grad()
def step_of(model: Any, length: int, *, recompute: bool = False) -> dict[str, Any]:
    """A step at this stored length with each cache; the full one is cut back after each, so that it stays as long."""
    ids = torch.randint(0, 2048, (1, length + 40), generator=torch.Generator().manual_seed(1))
    full = DynamicCache(config=model.config)
    model(ids[:, : length - 1], past_key_values=full)
    stream = ss.StreamingCache(model, SINKS, length - SINKS)
    model(ids, past_key_values=stream)
    token = ids[:, :1]

    def plain() -> None:
        with torch.no_grad():
            model(token, past_key_values=full)
        full.crop(-1)

    def streaming() -> None:
        with torch.no_grad():
            model(token, past_key_values=stream)

    def again() -> None:
        with torch.no_grad():
            model(ids[:, :length], use_cache=False, logits_to_keep=1)

    return {"plain": plain, "streaming": streaming} | ({"again": again} if recompute else {})


def steps() -> Iterator[Figure]:
    large, small = model_of(), nano()
    for what, model, length, bound in (
        ("nano, 124", small, 124, 1.10),
        ("256", large, 256, 1.05),
        ("1024", large, 1024, 0.95),
        ("4096", large, 4096, 0.95),
    ):
        seconds = in_turns(step_of(model, length), ROUNDS, time.thread_time)
        yield at_most(f"a token at {what} / DynamicCache as long", seconds["streaming"], seconds["plain"], bound)
    seconds = in_turns(step_of(large, 1024, recompute=True), 7, time.thread_time)
    yield at_least("recomputing the window of 1024 / a token", seconds["again"], seconds["streaming"], 40)


def of_model() -> Iterator[Figure]:
    """The same of a pretrained model, at fewer rounds: a step takes its time; and how it reads a text."""
    model, title = ss.load(NAME).eval(), Path(NAME).name
    for length in (256, 1024):
        seconds = in_turns(step_of(model, length), 7, time.thread_time)
        what = f"{title}: a token at {length} / DynamicCache as long"
        yield beside(what, seconds["streaming"], seconds["plain"])
    ids = torch.randint(0, 2048, (1, 256), generator=torch.Generator().manual_seed(1))
    sides = {
        str(chunk): partial(lambda chunk: losses(model, ids, ss.StreamingCache(model, 4, 120), chunk), chunk)
        for chunk in (1, 128)
    }
    seconds = in_turns(sides, 1, time.thread_time)
    yield beside(f"{title}: token by token / in pieces of 128, read strictly", seconds["1"], seconds["128"])


def far_out() -> Iterator[Figure]:
    """Time and memory of a token early and late in a stream: two streams, read in turns."""
    model = model_of(64, 2)
    early, late = (ss.StreamingCache(model, SINKS, 124 - SINKS) for _ in range(2))
    follow(model, early, NEAR)
    follow(model, late, NEAR)
    before = resident()
    follow(model, late, LONG - NEAR)
    after = resident()
    seconds = in_turns(
        {"late": lambda: follow(model, late, 50), "early": lambda: follow(model, early, 50)}, ROUNDS, time.thread_time
    )
    yield at_most(f"a token at {LONG:,} / at {NEAR:,}", seconds["late"] / 50, seconds["early"] / 50, 1.05)
    yield at_most(f"resident memory at {LONG:,} / at {NEAR:,}", after, before, 1.02, "MiB")


@torch.inference_mode()
def follow(model: Any, cache: Any, count: int) -> None:
    """So many tokens one by one, each the likeliest after the one before."""
    token = torch.tensor([[1]])
    for _ in range(count):
        token = model(token, past_key_values=cache).logits[:, -1:].argmax(-1)


def resident() -> float:
    """MiB of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


def losses(model: Any, ids: Tensor, cache: Any, chunk: int) -> Tensor:
    """Nats of each token but the first, read one by one."""
    logits = torch.cat([output.logits for output in cache.read(model, ids, chunk)], 1)
    return functional.cross_entropy(logits[0, :-1], ids[0, 1:], reduction="none")


def text() -> Iterator[Figure]:
    """Perplexity on held-out text, of which every token is predicted."""
    model, ids = nano(), held_out()
    with torch.no_grad():
        dense = model(ids[:, :4096]).logits
    full = functional.cross_entropy(dense[0, 1024:-1], ids[0, 1025:4096])
    found = {}
    for sinks in (0, 1, 4):
        found[sinks] = losses(model, ids, ss.StreamingCache(model, sinks, 124 - sinks), 128)[TEXT // 2 :].mean()
    for sinks, loss in found.items():
        what = (
            f"perplexity of a full cache, tokens 1k to 4k / a stream with {sinks} sinks, last {TEXT // 2:,} of {TEXT:,}"
        )
        yield at_least(what, math.exp(full), math.exp(loss), 5, "ppl")
    start = time.thread_time()
    losses(model, ids[:, :4000], ss.StreamingCache(model, 4, 120), 128)
    pieces = time.thread_time() - start
    start = time.thread_time()
    losses(model, ids[:, :4000], ss.StreamingCache(model, 4, 120), 1)
    yield at_least("token by token / in pieces of 128, read strictly", time.thread_time() - start, pieces, 20)


def held_out() -> Tensor:
    """Tokens of documents that nano was not trained on, behind a BOS."""
    from sinkscope.data import DataConfig, encode_data

    found = encode_data(DataConfig(corpus="python", tokenizer="nano")).whole
    bos = torch.tensor([found.tokenizer.bos_token_id])
    return torch.cat([bos, torch.from_numpy(found.validation.tokens[: TEXT - 1].astype("int64"))])[None]


def main() -> None:
    torch.set_num_threads(1)
    if NAME:
        keep()
        report(f"streaming_{Path(NAME).name}", [*of_model()])
    else:
        report("streaming", [*steps(), *text(), *far_out()])


if __name__ == "__main__":
    main()
