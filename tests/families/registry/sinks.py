"""Decoders with a learned sink: a logit per head, or per head and query, that no token stands for."""

from __future__ import annotations

from tests.families.family import Family, Host
from tests.families.inputs import VOCABULARY
from tests.families.registry.sizes import EXPERTS, GROUPED, INDEX, LATENT, SHARED, SIZES

EAGER: tuple[Host, ...] = ("eager",)
SEES = {"sliding_window": 5}
FEW = {"num_local_experts": 2, "num_experts_per_tok": 1}
COMPRESSED = {
    **SIZES,
    "max_position_embeddings": 64,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "q_lora_rank": 16,
    "o_groups": 2,
    "o_lora_rank": 8,
    "moe_intermediate_size": 16,
    "num_experts_per_tok": 2,
    "n_routed_experts": 4,
    "hc_mult": 2,
    "index_n_heads": 2,
    "index_head_dim": 16,
    "index_topk": 4,
    "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
}

SINKS: dict[str, Family] = {
    "gpt_oss": Family("GptOssConfig", {**GROUPED, **FEW, **SEES}, hosts=EAGER),
    "granite_swa": Family("GraniteSWAConfig", {**GROUPED, **SEES}, hosts=EAGER, sharpness=16.0, eager_omits_sink=True),
    "granitemoe_swa": Family(
        "GraniteMoeSWAConfig",
        {**SHARED, **SEES, "num_local_experts": 4},
        hosts=EAGER,
        sharpness=16.0,
        eager_omits_sink=True,
    ),
    "mimo_v2_flash": Family(
        "MiMoV2FlashConfig",
        {**GROUPED, **SEES, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
        hosts=EAGER,
    ),
    "flint": Family(
        "FlintConfig",
        {**GROUPED, **EXPERTS, **SEES, "shared_expert_intermediate_size": 16},
        hosts=EAGER,
        sharpness=3.0,
    ),
    "openai_privacy_filter": Family(
        "OpenAIPrivacyFilterConfig", {**GROUPED, **FEW, **SEES}, auto="AutoModelForTokenClassification", hosts=EAGER
    ),
    "hy_v4": Family("HYV4Config", {**LATENT, **INDEX, "head_dim": 16, "hc_mult": 2}, hosts=EAGER, sharpness=300.0),
    "inkling2": Family(
        "Inkling2TextConfig",
        {**SIZES, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "sliding_window_size": 5}
        | {"swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_head_dim": 8, "d_rel": 4, "rel_extent": 16}
        | {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
        | {"unpadded_vocab_size": VOCABULARY, "n_layers_per_attn_res_block": 1},
        hosts=EAGER,
        sharpness=100.0,
    ),
    "deepseek_v4_sliding": Family(
        "DeepseekV4Config",
        {**COMPRESSED, **SEES, "layer_types": ["sliding_attention"] * 2},
        hosts=EAGER,
        sharpness=3.0,
    ),
}

ENTRIES: dict[str, Family] = {
    "deepseek_v4": Family(
        "DeepseekV4Config",
        {**COMPRESSED, **SEES, "layer_types": ["compressed_sparse_attention", "heavily_compressed_attention"]},
        hosts=EAGER,
        sharpness=3.0,
    ),
}
