"""Decoders whose layers all attend alike, dense and with experts."""

from __future__ import annotations

from tests.families.family import Family
from tests.families.registry.sizes import EXPERTS, GPT, GROUPED, ROUTED, SHARED, SIZES, TEXT

DENSE: dict[str, Family] = {
    "llama": Family("LlamaConfig", GROUPED),
    "gpt2": Family("GPT2Config", GPT),
    "ctrl": Family("CTRLConfig", {**GPT, "dff": 48}, sharpness=16.0),
    "gpt_neox": Family("GPTNeoXConfig", TEXT),
    "gpt_bigcode": Family("GPTBigCodeConfig", GPT),
    "opt": Family("OPTConfig", {**SIZES, "ffn_dim": 48, "max_position_embeddings": 64, "word_embed_proj_dim": 32}),
    "biogpt": Family("BioGptConfig", TEXT),
    "phi": Family("PhiConfig", TEXT),
    "phi3": Family("Phi3Config", SHARED),
    "qwen2": Family("Qwen2Config", SHARED),
    "qwen3": Family("Qwen3Config", GROUPED, sharpness=3.0),
    "gemma": Family("GemmaConfig", GROUPED),
    "cohere": Family("CohereConfig", GROUPED),
    "granite": Family("GraniteConfig", SHARED),
    "olmo": Family("OlmoConfig", SHARED),
    "olmo2": Family("Olmo2Config", SHARED, sharpness=3.0),
    "glm4": Family("Glm4Config", GROUPED),
    "helium": Family("HeliumConfig", GROUPED),
    "nemotron": Family("NemotronConfig", GROUPED),
    "persimmon": Family("PersimmonConfig", TEXT, sharpness=3.0),
    "stablelm": Family("StableLmConfig", SHARED),
    "smollm3": Family("SmolLM3Config", GROUPED),
    "ernie4_5": Family("Ernie4_5Config", GROUPED),
    "apertus": Family("ApertusConfig", GROUPED, sharpness=3.0),
    "bitnet": Family("BitNetConfig", SHARED),
    "nanochat": Family("NanoChatConfig", SHARED, sharpness=24.0),
    "diffllama": Family("DiffLlamaConfig", GROUPED, calls=2),
    "doge": Family("DogeConfig", SHARED, sharpness=3.0, faults={"sdpa": "5.23"}),
    "bert_decoder": Family("BertConfig", {**TEXT, "is_decoder": True}, sharpness=20.0),
}

MIXTURES: dict[str, Family] = {
    "mixtral": Family("MixtralConfig", {**GROUPED, "num_local_experts": 2}),
    "olmoe": Family("OlmoeConfig", {**TEXT, "num_experts": 4, "num_experts_per_tok": 2}, sharpness=3.0),
    "qwen2_moe": Family("Qwen2MoeConfig", {**SHARED, **EXPERTS, "shared_expert_intermediate_size": 16}),
    "qwen3_moe": Family("Qwen3MoeConfig", {**GROUPED, **EXPERTS}, sharpness=3.0),
    "granitemoe": Family("GraniteMoeConfig", {**SHARED, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "phimoe": Family("PhimoeConfig", {**SHARED, "num_local_experts": 4}),
    "dots1": Family("Dots1Config", {**GROUPED, **ROUTED, "n_shared_experts": 1}, sharpness=3.0),
    "glm4_moe": Family("Glm4MoeConfig", {**GROUPED, **ROUTED, "n_shared_experts": 1}),
}
