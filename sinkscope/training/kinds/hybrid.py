"""A hybrid: transformers' `JambaForCausalLM`, attention in every fourth layer and Mamba in the others."""

from __future__ import annotations

from transformers import JambaConfig, JambaForCausalLM, PreTrainedTokenizerBase

from sinkscope.training.kinds.kind import Kind
from sinkscope.training.recipe import Recipe

PERIOD, OFFSET = 4, 2  # layers 2, 6, 10 … attend: in the middle of each four, as in Jamba's own of eight
STATE, EXPAND = 8, 1


def hybrid_model(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> JambaForCausalLM:
    """Jamba at the recipe's sizes, without experts and with tied embeddings; it has no position encoding.

    The state and the inner width of Mamba are small (8 and 1 × width; Jamba has 16 and 2 × width), because the scan
    without GPU kernels takes most of a step.
    """
    config = JambaConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=recipe.context,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        attn_layer_period=PERIOD,
        attn_layer_offset=OFFSET,
        num_experts=1,
        num_experts_per_tok=1,
        mamba_d_state=STATE,
        mamba_expand=EXPAND,
        mamba_dt_rank="auto",
        tie_word_embeddings=True,
        **{"num_key_value_heads": recipe.model["num_attention_heads"], **recipe.model},
    )
    return JambaForCausalLM(config)


HYBRID = Kind(
    model=hybrid_model,
    about={"model": "jamba", "attention_every": PERIOD, "first_attention": OFFSET, "state": STATE, "expand": EXPAND},
)
