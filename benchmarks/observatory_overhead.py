"""What all observers cost on top of the plain SDPA forward: a random GPT-2, 12 layers, width 768, T = 512, fp32.

One thread and its own time, with freed memory kept and with glibc's defaults (`benchmarks/memory.py`).

Run: python -m benchmarks.observatory_overhead [--save]
"""

from __future__ import annotations

import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import sinkscope as ss
from benchmarks.memory import in_both_settings
from benchmarks.sides import Figure, at_most, beside, in_turns
from sinkscope.statistics.spectral import spectral_bands

LENGTH, ROUNDS = 512, 7


def figures() -> list[Figure]:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_positions=LENGTH, attn_implementation="sdpa")).eval()
    ids = torch.randint(0, model.config.vocab_size, (1, LENGTH))
    seconds = in_turns(
        {
            "forward": torch.no_grad()(lambda: model(ids, use_cache=False, logits_to_keep=1)),
            "sink rate": lambda: ss.measure(model, ids, observers=[ss.AttentionReceived("first:8")]),
            "every position": lambda: ss.measure(model, ids, observers=[ss.AttentionReceived("all")]),
            "all observers": lambda: ss.measure(model, ids, observers="all"),
        },
        ROUNDS,
        time.thread_time,
    )
    start = time.thread_time()
    spectral_bands(model.lm_head.weight.detach().clone())
    once = time.thread_time() - start
    cold = seconds["all observers"] + once
    forward = seconds["forward"]
    return [
        at_most("measure with all observers / forward", seconds["all observers"], forward, 2.0),
        at_most("sink rate at the first 8 positions / forward", seconds["sink rate"], forward, 1.10),
        beside("sink rate at every position / forward", seconds["every position"], forward),
        beside("once per model, not in the above: the unembedding's spectrum / forward", once, forward),
        at_most("all observers on a model's first sample, spectrum included / forward", cold, forward, 2.0),
    ]


def main() -> None:
    torch.set_num_threads(1)
    in_both_settings("observatory_overhead", figures)


if __name__ == "__main__":
    main()
