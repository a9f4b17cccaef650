"""Decoders with latent attention, and those whose queries choose their keys by an index."""

from __future__ import annotations

from tests.families.family import Family
from tests.families.registry.sizes import GROUPED, INDEX, LATENT

GROUPS = {"n_group": 2, "topk_group": 1}

LATENTS: dict[str, Family] = {
    "deepseek_v2": Family("DeepseekV2Config", {**LATENT, **GROUPS}, sharpness=40.0),
    "deepseek_v3": Family("DeepseekV3Config", {**LATENT, **GROUPS}, sharpness=40.0),
    "minicpm3": Family("MiniCPM3Config", LATENT, sharpness=30.0),
    "mistral4": Family("Mistral4Config", {**LATENT, **GROUPS}, auto="AutoModel", sharpness=40.0),
    "glm4_moe_lite": Family("Glm4MoeLiteConfig", {**LATENT, **GROUPS}, sharpness=40.0),
    "longcat_flash": Family(
        "LongcatFlashConfig",
        {**LATENT, "head_dim": 8, "ffn_hidden_size": 48, "expert_ffn_hidden_size": 16, "num_layers": 1}
        | {"zero_expert_num": 2, "moe_topk": 2},
        sharpness=40.0,
    ),
}

INDEXED: dict[str, Family] = {
    "deepseek_v32": Family("DeepseekV32Config", {**LATENT, **GROUPS, **INDEX}, sharpness=40.0),
    "glm_moe_dsa": Family("GlmMoeDsaConfig", {**LATENT, **INDEX}, sharpness=40.0),
    "axk2": Family("AXK2Config", {**LATENT, **GROUPS, **INDEX}, sharpness=600.0),
    "minimax_m3": Family(
        "MiniMaxM3VLTextConfig",
        {**GROUPED, "num_local_experts": 2, "num_experts_per_tok": 1, "layer_types": ["minimax_m3_sparse"] * 2}
        | {"index_n_heads": 2, "index_head_dim": 8, "index_block_size": 4, "index_topk_blocks": 2},
        sharpness=3.0,
    ),
}
