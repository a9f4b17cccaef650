"""A decoded token with eviction against a plain one at the same stored length, and what ragged heads cost and save.

A Llama of 8 layers × 512 with 8 heads of 64, batch 1, fp32, one thread. Decoding: 1024 keys are stored, and each token
adds one and evicts one; plain is a DynamicCache of the same length, from which the newest token is removed again.
Ragged: heads keep 5 … 45 % of 4096 tokens, 25 % on average, against a DynamicCache with all of them. Bytes: what
policies hold after 96, 1024 and 4096 tokens with a quarter of the keys, in the heads of SmolLM2-135M.

"Products alone" is the floor of two policies whose scores of all keys change with every query: only the matrix products
that the published method asks for at each step, on the same keys, with nothing around them.

With `--model NAME`, only the decoded tokens of that model, with freed memory kept. With `--long`, only a quarter of a
long text: each head keeps 2048 of 8192 tokens, against all of them, with freed memory kept.

Run: python -m benchmarks.eviction [--model NAME | --long] [--save]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

import sinkscope as ss
from benchmarks.memory import in_both_settings, keep
from benchmarks.sides import Figure, at_least, at_most, beside, in_turns, report
from sinkscope.caches import Budget, EvictingCache, Policy, evicting, held, policy_of
from sinkscope.caches.policies import SnapKV
from sinkscope.caches.sizes import held_bytes

STORED, TEXT, LONG, ROUNDS, STEPS = 1024, 4096, 8192, 9, 2
NAME = sys.argv[sys.argv.index("--model") + 1] if "--model" in sys.argv else ""
BOUNDS: dict[str, float] = {
    "key-norm": 1.0,
    "tova": 1.1,
    "h2o": 1.1,
    "vatp": 1.2,
    "scissorhands": 1.15,
    "keydiff": 1.15,
    "lagkv": 1.15,
}
# No bound: the published scores of all keys change with every query, and no smaller sum can be updated in place.
# SnapKV softmaxes 32 queries over all keys (their logits, if kept, would be 32 numbers per key and query head next to
# the 2 d of a key and its value). Expected attention multiplies every key by a d × d matrix, which turns with the
# position of the next token. `floors` measures what these products cost by themselves.
BESIDE = ("streaming", "random", "snapkv", "expected")
HEADS = {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576}
SHARES = tuple(0.05 + 0.4 * head / 7 for head in range(8))


@lru_cache(maxsize=1)
def loaded(name: str) -> Any:
    return ss.load(name).eval()


def model() -> Any:
    """The model to time: a new module each time, with the same weights."""
    if NAME:
        weights = loaded(NAME)
        return deepcopy(weights, {id(one): one for one in weights.parameters()})
    torch.manual_seed(0)
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 8}
    return LlamaForCausalLM(LlamaConfig(vocab_size=512, max_position_embeddings=1 << 20, **sizes)).eval()


@dataclass(frozen=True)
class Spread(Budget):
    """A different share of the text for each head."""

    def of_layer(self, layer: int, layers: int, tokens: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
        return tokens // 4

    def of_heads(
        self, scores: Float[Tensor, "batch kv_heads key"], count: Int[Tensor, " batch"], layer: int
    ) -> Int[Tensor, "batch kv_heads"]:
        return (count[:, None] * 4 * torch.tensor(SHARES)).long()


def plain(text: Tensor) -> tuple[DynamicCache, Callable[[], None]]:
    """A cache with `text` in it, and a step that leaves it unchanged."""
    host = model()
    cache = DynamicCache(config=host.config)
    with torch.no_grad():
        host(text, past_key_values=cache, logits_to_keep=1)

    @torch.no_grad()
    def steps() -> None:
        for _ in range(STEPS):
            host(text[:, :1], past_key_values=cache)
            cache.crop(-1)

    return cache, steps


def evicted(
    stack: ExitStack, policy: Policy, budget: Budget | int, text: Tensor, when: str = "always"
) -> tuple[EvictingCache, Callable[[], None]]:
    """The same with eviction. Each side has its own model, so that no editor sees another's calls."""
    host = model()
    cache = stack.enter_context(evicting(host, policy, budget, when))  # type: ignore[arg-type]
    with torch.no_grad():
        host(text, past_key_values=cache, logits_to_keep=1)

    @torch.no_grad()
    def steps() -> None:
        for _ in range(STEPS):
            host(text[:, :1], past_key_values=cache)

    return cache, steps


def tokens() -> list[Figure]:
    """Decoded tokens with each policy."""
    torch.set_num_threads(1)
    text = torch.randint(0, 512, (1, STORED), generator=torch.Generator().manual_seed(1))
    with ExitStack() as stack:
        _, base = plain(text)
        policies = {name: SnapKV(32) if name == "snapkv" else policy_of(name) for name in (*BOUNDS, *BESIDE)}
        sides = {name: evicted(stack, policy, STORED, text)[1] for name, policy in policies.items()}
        seconds = in_turns({"plain": base, **sides}, ROUNDS, time.thread_time)
    where = f"{Path(NAME).name}: " if NAME else ""
    found = [
        at_most(
            f"{where}a token with {name} / plain, {STORED} stored",
            seconds[name] / STEPS,
            seconds["plain"] / STEPS,
            bound,
        )
        for name, bound in BOUNDS.items()
    ]
    return found + [
        beside(f"{where}a token with {name} / plain, {STORED} stored", seconds[name] / STEPS, seconds["plain"] / STEPS)
        for name in BESIDE
    ]


def floors() -> list[Figure]:
    """The products that a step of SnapKV and of expected attention cannot do without, against a plain step."""
    torch.set_num_threads(1)
    text = torch.randint(0, 512, (1, STORED), generator=torch.Generator().manual_seed(1))
    cache, base = plain(text)
    keys = [layer.keys[0] for layer in cache.layers]
    group = model().config.num_attention_heads // len(keys[0])
    queries = torch.randn(len(keys[0]), SnapKV().window * group, keys[0].shape[2])
    matrices = torch.randn(len(keys[0]), keys[0].shape[2], group * keys[0].shape[2])
    sides: dict[str, Callable[[], object]] = {
        "snapkv": lambda: [torch.matmul(queries, key.mT).softmax(-1) for key in keys],
        "expected": lambda: [torch.matmul(key, matrices) for key in keys],
    }
    seconds = in_turns({"plain": base, **sides}, ROUNDS, time.thread_time)
    where = f"{Path(NAME).name}: " if NAME else ""
    return [
        beside(
            f"{where}products alone of a token with {name} + plain / plain, {STORED} stored",
            seconds[name] + seconds["plain"] / STEPS,
            seconds["plain"] / STEPS,
        )
        for name in sides
    ]


def figures() -> list[Figure]:
    found = [*tokens(), *floors()]
    long = torch.randint(0, 512, (1, TEXT), generator=torch.Generator().manual_seed(1))
    with ExitStack() as stack:
        whole, base = plain(long)
        ragged, step = evicted(stack, policy_of("streaming"), Spread(), long, "prefill")
        sizes = held_bytes(ragged) / 1e6, held_bytes(whole) / 1e6
        seconds = in_turns({"plain": base, "ragged": step}, ROUNDS, time.thread_time)
    found.append(at_most(f"memory of ragged heads, 25 % of {TEXT} kept / all", *sizes, 0.45, "MB"))
    found.append(
        at_most(f"a token with ragged heads, 25 % of {TEXT} kept / all", seconds["ragged"], seconds["plain"], 0.6)
    )
    return [*found, *sizes_held()]


def quarter() -> Iterator[Figure]:
    """Steps with a quarter of a long text's keys, chosen once or again at each step, against all of them."""
    text = torch.randint(0, 512, (1, LONG), generator=torch.Generator().manual_seed(1))
    with ExitStack() as stack:
        sides: dict[str, Callable[[], object]] = {"plain": plain(text)[1]}
        for when in ("prefill", "always"):
            sides[when] = evicted(stack, policy_of("key-norm"), LONG // 4, text, when)[1]
        seconds = in_turns(sides, ROUNDS, time.thread_time)
    for when in ("prefill", "always"):
        what = f"a token with all of {LONG} keys / with a quarter of them, {when}"
        yield at_least(what, seconds["plain"] / STEPS, seconds[when] / STEPS, 1.3)


def sizes_held() -> Iterator[Figure]:
    """Predicted bytes of policies with a quarter of the keys (the tests compare them with real caches)."""
    config = LlamaConfig(**HEADS, num_hidden_layers=30)
    for tokens in (96, 1024, 4096):
        for name in ("snapkv", "scissorhands", "expected", "h2o", "streaming-cache"):
            for when in ("prefill", "always") if name != "streaming-cache" else ("prefill",):
                policy = SnapKV(6) if name == "snapkv" and tokens == 96 else name
                kept = held(policy, config, tokens // 4, tokens, when)
                what = f"bytes of {name}, {when}, 25 % of {tokens} keys / all"
                yield beside(what, kept.total / 1e6, kept.whole / 1e6, "MB")


if __name__ == "__main__":
    if "--long" in sys.argv:
        keep()
        torch.set_num_threads(1)
        report("eviction_long", [*quarter()])
    elif NAME:
        keep()
        report(f"eviction_{Path(NAME).name}", [*tokens(), *floors()])
    else:
        in_both_settings("eviction", figures)
