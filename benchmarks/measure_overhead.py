"""What measuring costs on top of the plain SDPA forward, and against eager attention maps.

8 layers, width 256, 8 heads, T = 2048, one sequence, fp32. Run: python -m benchmarks.measure_overhead [--save]
"""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import sinkscope as ss
from benchmarks.sides import at_least, at_most, beside, in_turns, report

LENGTH, ROUNDS = 2048, 7


def model_of(length: int, *, layers: int = 8, attention: str = "sdpa") -> LlamaForCausalLM:
    """A random Llama; the same weights for every attention implementation."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=2048,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=length,
        attn_implementation=attention,
    )
    return LlamaForCausalLM(config).eval()


def main() -> None:
    plain, eager = model_of(LENGTH), model_of(LENGTH, attention="eager")
    ids = torch.randint(0, 2048, (1, LENGTH))

    @torch.no_grad()
    def maps() -> None:
        """The usual way: every map in memory, then the mean received by each key."""
        for attention in eager(ids, output_attentions=True, use_cache=False, logits_to_keep=1).attentions:
            attention.sum(-2) / torch.arange(LENGTH, 0, -1)

    seconds = in_turns(
        {
            "forward": torch.no_grad()(lambda: plain(ids, use_cache=False, logits_to_keep=1)),
            "first:8": lambda: ss.measure(plain, ids, observers=[ss.AttentionReceived("first:8")]),
            "all": lambda: ss.measure(plain, ids, observers=[ss.AttentionReceived("all")]),
            "default observers": lambda: ss.measure(plain, ids),
            "eager maps": maps,
        },
        ROUNDS,
    )
    forward = seconds["forward"]
    report(
        "measure_overhead",
        [
            at_most("measure first:8 / forward", seconds["first:8"], forward, 1.15),
            at_most("measure all / forward", seconds["all"], forward, 2.2),
            at_least("eager maps / measure all", seconds["eager maps"], seconds["all"], 3.0),
            beside("measure with the default observers / forward", seconds["default observers"], forward),
        ],
    )


if __name__ == "__main__":
    main()
