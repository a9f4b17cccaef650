"""Reweighing a token by its closed form against plain attention and against written-out maps: time, and agreement.

fp32, CPU, one thread and its own time; batch 1, 8 heads of 64, T = 2048, causal. One attention call, as a layer makes
it; and all of a small Llama (4 layers of 512), where the rest of the model counts too. The log-sum-exp was compared
with the function's own weights before, as is done at a layer's first call.

Run: python -m benchmarks.reweigh [--save]
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.sides import Figure, at_most, beside, in_turns, report
from sinkscope.attention import TokenAxis
from sinkscope.hooks import Invocation
from sinkscope.hooks.dispatch import KernelLse
from sinkscope.interventions import Reweigh
from sinkscope.interventions.reweigh.call import Call
from sinkscope.interventions.reweigh.reweigh import of_call

HEADS, DIM, LENGTH, ROUNDS, GAMMA = 8, 64, 2048, 7, 4.0
BOUND = 1.15
SCALING = DIM**-0.5


class _Layer(nn.Module):
    is_causal = True


class _Opened:
    """A pass that begins its rows, without padding."""

    seen = 0

    def tokens(self, start: int, stop: int, device: torch.device) -> TokenAxis:
        return TokenAxis.plain(stop - start, start=start, device=device)


def flash(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor | None]:
    with KernelLse() as mode:
        output = functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=SCALING)
    return output, mode.lse


def closed(query: Tensor, key: Tensor, value: Tensor, layer: nn.Module) -> Tensor:
    """What `Reweigh` does to one call."""
    output, lse = flash(query, key, value)
    given = {"query": query, "key": key, "value": value, "attention_mask": None, "scaling": SCALING}
    call = Call(_Opened(), Invocation(layer, "sdpa", given, output.transpose(1, 2), lse), {layer: True})  # type: ignore[arg-type]
    return of_call(call, call.at((0,)), GAMMA)


def maps(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The same with T × T maps, in place wherever that is possible."""
    scores = torch.matmul(query * SCALING, key.mT)
    scores.masked_fill_(torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu_(1), -torch.inf)
    weights = scores.softmax(-1)
    weights[..., 0] *= GAMMA
    weights /= weights.sum(-1, keepdim=True)
    return torch.matmul(weights, value)


def a_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=4,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=LENGTH,
    )
    return LlamaForCausalLM(config).eval()


def timed(run: Callable[[], object]) -> float:
    start = time.thread_time()
    run()
    return time.thread_time() - start


def main() -> None:
    torch.set_num_threads(1)
    random, layer = torch.Generator().manual_seed(0), _Layer()
    inputs = [torch.randn(1, HEADS, LENGTH, DIM, generator=random) for _ in range(3)]
    apart = float((closed(*inputs, layer) - maps(*inputs)).abs().max())
    model, ids = a_model(), torch.randint(512, (1, LENGTH), generator=random)

    def plain() -> object:
        return model(ids, use_cache=False, logits_to_keep=1)

    with torch.no_grad():
        one = in_turns(
            {
                "flash": lambda: flash(*inputs),
                "closed": lambda: closed(*inputs, layer),
                "maps": lambda: maps(*inputs),
            },
            ROUNDS,
            time.thread_time,
        )
        seconds: dict[str, list[float]] = {"plain": [], "reweighed": []}
        for _ in range(4):  # the context is entered anew, and its layers compared in a pass that is not counted
            seconds["plain"].append(timed(plain))
            with Reweigh(GAMMA).applied(model):
                plain()
                seconds["reweighed"].append(timed(plain))
        whole = {name: statistics.median(values[1:]) for name, values in seconds.items()}
    figures: list[Figure] = [
        at_most(f"one call with a factor on one key, T = {LENGTH}, against flash", one["closed"], one["flash"], BOUND),
        beside(f"one call with written-out maps, T = {LENGTH}, against flash", one["maps"], one["flash"]),
        at_most("closed form against written-out maps: largest difference of outputs", apart, 1e-5, 1.0, ""),
        beside(
            f"a Llama of 4 layers of 512, T = {LENGTH}, reweighed against plain", whole["reweighed"], whole["plain"]
        ),
    ]
    report("reweigh", figures)


if __name__ == "__main__":
    main()
