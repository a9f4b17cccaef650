"""Attention beside state-space, convolution, recurrent and linear layers, and before output gates."""

from __future__ import annotations

from tests.families.family import Family
from tests.families.registry.sizes import EXPERTS, GROUPED, LINEAR, SHARED, TEXT

FOUR = {"num_hidden_layers": 4}
STATES = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1}
SHARED_EXPERT = {"shared_expert_intermediate_size": 16}

HYBRIDS: dict[str, Family] = {
    "jamba": Family(
        "JambaConfig",
        {**GROUPED, **FOUR, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2}
        | {"mamba_d_state": 4, "mamba_dt_rank": 4, "use_mamba_kernels": False},
    ),
    "bamba": Family("BambaConfig", {**GROUPED, **STATES, "attn_layer_indices": [1]}),
    "falcon_h1": Family(
        "FalconH1Config", {**GROUPED, "mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8}
    ),
    "zamba": Family(
        "ZambaConfig",
        {**TEXT, **FOUR, "num_key_value_heads": 4, "layers_block_type": ["mamba", "hybrid"] * 2}
        | {"mamba_d_state": 4, "mamba_dt_rank": 4, "n_mamba_heads": 2, "use_mamba_kernels": False},
    ),
    "zamba2": Family(
        "Zamba2Config",
        {**TEXT, **FOUR, "num_key_value_heads": 4, "layers_block_type": ["mamba", "hybrid"] * 2}
        | {"mamba_d_state": 8, "n_mamba_heads": 4, "mamba_ngroups": 1, "num_mem_blocks": 1, "use_mem_rope": True}
        | {"hybrid_layer_ids": [1, 3]},
        sharpness=6.0,
    ),
    "nemotron_h": Family(
        "NemotronHConfig",
        {**GROUPED, "layers_block_type": ["mamba", "attention", "mlp", "attention"], "mamba_num_heads": 4}
        | {"mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 1, "use_mamba_kernels": False},
    ),
    "granitemoehybrid": Family(
        "GraniteMoeHybridConfig",
        {**SHARED, **STATES, "layer_types": ["mamba", "attention"], "num_local_experts": 2}
        | {"shared_intermediate_size": 16},
    ),
    "recurrent_gemma": Family(
        "RecurrentGemmaConfig",
        {**GROUPED, "attention_window_size": 5, "lru_width": 32, "num_hidden_layers": 3},
        sharpness=6.0,
    ),
    "lfm2": Family("Lfm2Config", {**GROUPED, "layer_types": ["conv", "full_attention"]}, sharpness=3.0),
    "minimax": Family("MiniMaxConfig", {**GROUPED, **FOUR, "num_local_experts": 2, "block_size": 8}, maps=(0, 2)),
    "qwen3_next": Family("Qwen3NextConfig", {**GROUPED, **FOUR, **LINEAR, **EXPERTS, **SHARED_EXPERT}, sharpness=3.0),
    "qwen3_5": Family("Qwen3_5TextConfig", {**GROUPED, **FOUR, **LINEAR}, sharpness=3.0),
    "qwen3_5_moe": Family(
        "Qwen3_5MoeTextConfig", {**GROUPED, **FOUR, **LINEAR, **EXPERTS, **SHARED_EXPERT}, sharpness=3.0
    ),
    "olmo_hybrid": Family("OlmoHybridConfig", {**SHARED, **FOUR, **LINEAR}, sharpness=3.0),
}
