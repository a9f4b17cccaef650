"""Named recipes; `60m` and `1b` are the paper's (Gu et al. 2025; sail-sg/Attention-Sink).

`nano-sft` is the paper's instruction tuning (appendix E: UltraChat200k, lr 2e-5 cosine, batch 64 × 2048, one epoch) at
nano's scale. It differs in its text (conversations about Python functions, which exist offline), in its batch of
32 × 128, and in its rate, a twentieth of the pre-training rate, as 2e-5 is of the paper's 4e-4. Scoring only the
responses is our choice; the paper does not state it.
"""

from __future__ import annotations

from typing import Any

from sinkscope.data import DataConfig
from sinkscope.training.optimizers import AdamW
from sinkscope.training.recipe import Recipe
from sinkscope.training.schedule import Constant, Cosine, Trapezoid


def _sizes(layers: int, heads: int, width: int, feed_forward: int, **more: Any) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "hidden_size": width,
        "intermediate_size": feed_forward,
        **more,
    }


def _paper(name: str, steps: int, model: dict[str, Any]) -> Recipe:
    """The common part of both models of the paper. Its released configurations set min_lr = lr: no decay."""
    return Recipe(
        name=name,
        steps=steps,
        batch_size=512,
        micro_batch=16,
        context=2048,
        seed=3406,
        precision="bf16",
        save_every=1000,
        eval_every=1000,
        validation_windows=800,
        model=model | {"vocab_size": 50432},
        optimizer=AdamW(lr=4e-4),
        schedule=Constant(warmup=100),
        data=DataConfig(
            corpus="hf:monology/pile-uncopyrighted",
            tokenizer="EleutherAI/gpt-neox-20b",
            bos="none",
            max_characters=20_000_000_000,  # about the paper's 5 billion unique tokens
        ),
    )


RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="nano",
            steps=1500,
            batch_size=32,
            context=128,
            save_every=250,
            model=_sizes(4, 4, 128, 336),
            optimizer=AdamW(lr=4e-3),
            schedule=Constant(warmup=50),
            data=DataConfig(corpus="python", tokenizer="bpe:2048", bos="fixed"),
        ),
        Recipe(
            name="micro",  # 48 heads instead of nano's 16, at about twice its cost
            steps=3000,
            batch_size=16,
            context=256,
            save_every=250,
            model=_sizes(6, 8, 128, 336),
            optimizer=AdamW(lr=4e-3),
            schedule=Trapezoid(warmup=50, decay=0.2),
            data=DataConfig(corpus="python", tokenizer="bpe:2048", bos="fixed"),
        ),
        Recipe(
            name="nano-sft",
            start_from="nano",
            steps=350,  # once over the conversations: about 1.4 million tokens
            batch_size=32,
            context=128,
            save_every=100,
            model=_sizes(4, 4, 128, 336),
            optimizer=AdamW(lr=2e-4),
            schedule=Cosine(warmup=10),
            data=DataConfig(corpus="python:chat", tokenizer="nano", bos="fixed", labels="responses"),
        ),
        Recipe(
            name="mini",
            steps=2000,
            batch_size=64,
            context=512,
            precision="bf16",
            save_every=500,
            eval_every=100,
            model=_sizes(8, 6, 384, 1024),
            optimizer=AdamW(lr=1.5e-3),
            schedule=Constant(warmup=100),
            data=DataConfig(corpus="python", tokenizer="bpe:2048", bos="fixed"),
        ),
        _paper("60m", 20_000, _sizes(10, 8, 768, 1536)),
        _paper("1b", 40_000, _sizes(22, 16, 2048, 5632)),
    )
}
