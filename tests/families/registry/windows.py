"""Decoders with windows, chunks and softcaps, most of them beside layers that see everything."""

from __future__ import annotations

from tests.families.family import Family
from tests.families.inputs import VOCABULARY
from tests.families.registry.sizes import EXPERTS, GROUPED, SHARED, TEXT

SEES = {"sliding_window": 5}
PER_LAYER = {"vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 0}

WINDOWS: dict[str, Family] = {
    "mistral": Family("MistralConfig", {**GROUPED, **SEES}),
    "starcoder2": Family("Starcoder2Config", {**SHARED, **SEES}),
    "cohere2": Family("Cohere2Config", {**GROUPED, **SEES}),
    "exaone4": Family("Exaone4Config", {**GROUPED, **SEES, "sliding_window_pattern": 2}, sharpness=3.0),
    "olmo3": Family("Olmo3Config", {**SHARED, **SEES}, sharpness=3.0),
    "afmoe": Family("AfmoeConfig", {**GROUPED, **EXPERTS, **SEES}, sharpness=3.0),
    "laguna": Family("LagunaConfig", {**GROUPED, **EXPERTS, **SEES}, sharpness=3.0),
    "llama4": Family(
        "Llama4TextConfig",
        {**GROUPED, "intermediate_size_mlp": 48, "num_local_experts": 2, "attention_chunk_size": 8}
        | {"use_qk_norm": False},
        sharpness=24.0,
    ),
    "modernbert_decoder": Family(
        "ModernBertDecoderConfig", {**TEXT, "local_attention": 6, "global_attn_every_n_layers": 2}, sharpness=24.0
    ),
    "gemma2": Family(
        "Gemma2Config",
        {**GROUPED, **SEES, "attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 8},
        hosts=("eager",),
        sharpness=30.0,
    ),
    "vaultgemma": Family(
        "VaultGemmaConfig",
        {**GROUPED, **SEES, "attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 8},
        hosts=("eager",),
        sharpness=30.0,
    ),
    "gemma3": Family(
        "Gemma3TextConfig",
        {**GROUPED, **SEES, "sliding_window_pattern": 2, "query_pre_attn_scalar": 8},
        sharpness=3.0,
    ),
    "gemma3n": Family(
        "Gemma3nTextConfig",
        {**GROUPED, **SEES, **PER_LAYER, "laurel_rank": 4, "altup_num_inputs": 2}
        | {"activation_sparsity_pattern": [0.0, 0.0]},
        sharpness=3.0,
    ),
    "gemma4": Family("Gemma4TextConfig", {**GROUPED, **SEES, **PER_LAYER, "global_head_dim": 8}, sharpness=3.0),
}
