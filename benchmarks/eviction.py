"""A decoded token with eviction against a plain one at the same stored length, and what ragged heads cost and save.

A Llama of 8 layers × 512 with 8 heads of 64, batch 1, fp32, one thread. Decoding: 1024 keys are stored, one comes and
one goes; plain is a DynamicCache of the same length, from which the newest token is taken away again. Ragged: 4096
tokens of which heads keep 5 … 45 %, 25 % on average, against a DynamicCache with all of them.

Run: python -m benchmarks.eviction [--save]
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from benchmarks.memory import in_both_settings
from benchmarks.sides import Figure, at_most, beside, in_turns
from sinkscope.caches import Budget, EvictingCache, Policy, evicting, policy_of
from sinkscope.caches.layers.slots import KeptSets
from sinkscope.caches.policies import SnapKV

STORED, TEXT, ROUNDS, STEPS = 1024, 4096, 9, 2
BOUNDS: dict[str, float] = {"key-norm": 1.0, "tova": 1.1, "h2o": 1.1, "vatp": 1.2}
BESIDE = ("streaming", "random", "keydiff", "snapkv")
SHARES = tuple(0.05 + 0.4 * head / 7 for head in range(8))


def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 8}
    return LlamaForCausalLM(LlamaConfig(vocab_size=512, max_position_embeddings=1 << 20, **sizes)).eval()


@dataclass(frozen=True)
class Spread(Budget):
    """Each head another share of the text."""

    def of_layer(self, layer: int, layers: int, tokens: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
        return tokens // 4

    def of_heads(
        self, scores: Float[Tensor, "batch kv_heads key"], count: Int[Tensor, " batch"], layer: int
    ) -> Int[Tensor, "batch kv_heads"]:
        return (count[:, None] * 4 * torch.tensor(SHARES)).long()


def plain(text: Tensor) -> tuple[DynamicCache, Callable[[], None]]:
    """A cache with `text` in it, and a step that leaves it as it was."""
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
    """The same with eviction; each has a model of its own, so that no editor looks at another's calls."""
    host = model()
    cache = stack.enter_context(evicting(host, policy, budget, when))  # type: ignore[arg-type]
    with torch.no_grad():
        host(text, past_key_values=cache, logits_to_keep=1)

    @torch.no_grad()
    def steps() -> None:
        for _ in range(STEPS):
            host(text[:, :1], past_key_values=cache)

    return cache, steps


def held(cache: DynamicCache) -> int:
    """Bytes of the distinct storages of keys and values."""
    tensors: list[Tensor] = []
    for layer in cache.layers:
        tensors += layer.held if isinstance(layer, KeptSets) else [layer.keys, layer.values]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def figures() -> list[Figure]:
    torch.set_num_threads(1)
    text = torch.randint(0, 512, (1, STORED), generator=torch.Generator().manual_seed(1))
    long = torch.randint(0, 512, (1, TEXT), generator=torch.Generator().manual_seed(1))
    with ExitStack() as stack:
        _, base = plain(text)
        policies = {name: SnapKV(32) if name == "snapkv" else policy_of(name) for name in (*BOUNDS, *BESIDE)}
        sides = {name: evicted(stack, policy, STORED, text)[1] for name, policy in policies.items()}
        seconds = in_turns({"plain": base, **sides}, ROUNDS, time.thread_time)
    found = [
        at_most(f"a token with {name} / plain, {STORED} stored", seconds[name] / STEPS, seconds["plain"] / STEPS, bound)
        for name, bound in BOUNDS.items()
    ]
    found += [
        beside(f"a token with {name} / plain, {STORED} stored", seconds[name] / STEPS, seconds["plain"] / STEPS)
        for name in BESIDE
    ]
    with ExitStack() as stack:
        whole, base = plain(long)
        ragged, step = evicted(stack, policy_of("streaming"), Spread(), long, "prefill")
        sizes = held(ragged) / 1e6, held(whole) / 1e6
        seconds = in_turns({"plain": base, "ragged": step}, ROUNDS, time.thread_time)
    found.append(at_most(f"memory of ragged heads, 25 % of {TEXT} kept / all", *sizes, 0.45, "MB"))
    found.append(
        at_most(f"a token with ragged heads, 25 % of {TEXT} kept / all", seconds["ragged"], seconds["plain"], 0.6)
    )
    return found


if __name__ == "__main__":
    in_both_settings("eviction", figures)
