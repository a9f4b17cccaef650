"""Sizes of tiny models that many families share."""

from __future__ import annotations

from tests.families.inputs import PATCH, SIDE, VOCABULARY

SIZES = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXT = {**SIZES, "intermediate_size": 48, "max_position_embeddings": 64}
SHARED = {**TEXT, "num_key_value_heads": 2}
GROUPED = {**SHARED, "head_dim": 8}
GPT = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_group": 2, "topk_group": 1}
LINEAR = {"linear_num_value_heads": 2, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
RANKS = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
LATENT = {**TEXT, **RANKS, "num_key_value_heads": 4, "moe_intermediate_size": 16} | {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
}
INDEX = {"index_topk": 6, "index_n_heads": 2, "index_head_dim": 16}
TWO_SIDES = {"vocab_size": VOCABULARY, "d_model": 32} | {
    f"{side}_{name}": value
    for side in ("encoder", "decoder")
    for name, value in (("layers", 2), ("ffn_dim", 48), ("attention_heads", 4))
}
TWOFOLD = {**TWO_SIDES, "max_position_embeddings": 64}
T5 = {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4} | {
    "decoder_start_token_id": 0
}
IMAGES = {"image_size": SIDE, "patch_size": PATCH, "hidden_size": 32, "num_hidden_layers": 2} | {
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
MASKED, PAIRED = "AutoModelForMaskedLM", "AutoModelForSeq2SeqLM"
