"""On a GPU: 128k tokens through a Llama-3.2-1B-shaped config in bf16, first eight positions, against the plain forward.

Says so and measures nothing where there is no GPU. Run: python -m benchmarks.cuda_long_context [--save]
"""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import sinkscope as ss
from benchmarks.sides import at_most, beside, in_turns, report

LENGTH, ROUNDS = 131072, 3


def model_on(device: str) -> LlamaForCausalLM:
    """Random weights in the shape of Llama-3.2-1B: 16 layers, width 2048, 32 heads, 8 key-value heads."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        max_position_embeddings=LENGTH,
        rope_theta=500000.0,
        tie_word_embeddings=True,
        attn_implementation="sdpa",
        dtype=torch.bfloat16,
    )
    with torch.device(device):
        return LlamaForCausalLM(config).to(torch.bfloat16).eval()


def main() -> None:
    if not torch.cuda.is_available():
        print("no GPU here: nothing was measured")
        return
    model = model_on("cuda")
    ids = torch.randint(0, model.config.vocab_size, (1, LENGTH), device="cuda")

    @torch.no_grad()
    def forward() -> None:
        model(ids, use_cache=False, logits_to_keep=1)
        torch.cuda.synchronize()

    def measured() -> None:
        ss.measure(model, ids, observers=[ss.AttentionReceived("first:8")])
        torch.cuda.synchronize()

    seconds, peaks = in_turns({"forward": forward, "measure": measured}, ROUNDS), {}
    for name, run in (("forward", forward), ("measure", measured)):
        torch.cuda.reset_peak_memory_stats()
        run()
        peaks[name] = torch.cuda.max_memory_allocated() / 1024**3
    report(
        "cuda_long_context",
        [
            at_most("measure first:8 / flash forward", seconds["measure"], seconds["forward"], 1.10),
            beside("peak memory: measure / forward", peaks["measure"], peaks["forward"], "GB"),
        ],
    )


if __name__ == "__main__":
    main()
