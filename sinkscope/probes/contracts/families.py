"""Tiny random models of many families, and whether measuring them agrees with their own eager attention.

One list, used by the tests and by the table in the docs: `python -m sinkscope.probes.contracts.families > table.md`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

Host = Literal["eager", "sdpa"]
Kind = Literal["tokens", "pairs", "pixels"]  # token ids; source and target ids; images

VOCABULARY = 97
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
FEED_FORWARD = {"intermediate_size": 48, "max_position_embeddings": 64}
TEXT = {**SIZES, **FEED_FORWARD}
GROUPED = {**TEXT, "num_key_value_heads": 2, "head_dim": 8}
LATENT = (
    {**TEXT, "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8}
    | {"qk_rope_head_dim": 8, "v_head_dim": 8, "moe_intermediate_size": 16, "n_routed_experts": 4}
    | {"num_experts_per_tok": 2, "first_k_dense_replace": 1}
)
TWOFOLD = {"vocab_size": VOCABULARY, "d_model": 32, "max_position_embeddings": 64} | {
    f"{side}_{name}": value
    for side in ("encoder", "decoder")
    for name, value in (("layers", 2), ("ffn_dim", 48), ("attention_heads", 4))
}
IMAGES = {"image_size": 24, "patch_size": 4, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4} | {
    "intermediate_size": 48
}
MASKED, PAIRED = "AutoModelForMaskedLM", "AutoModelForSeq2SeqLM"

PROJECTIONS = re.compile(
    r"(q_proj|k_proj|query|key|qkv|c_attn|query_key_value|q_b_proj|kv_b_proj|\.q|\.k|Wqkv)\.(weight|bias)$"
)
NORMS = re.compile(r"(q_norm|k_norm)\.weight$")


@dataclass(frozen=True)
class Family:
    """A model family of transformers by its configuration class and a tiny configuration.

    `hosts`: attention implementations that it has. `sharpness`: factor on queries and keys that takes attention far
    from uniform. `eager_omits_sink`: its returned eager weights ignore the learned sink, though its output does not.
    """

    config: str
    options: Mapping[str, Any] = field(default_factory=dict)
    auto: str = "AutoModelForCausalLM"
    kind: Kind = "tokens"
    hosts: tuple[Host, ...] = ("eager", "sdpa")
    sharpness: float = 12.0
    eager_omits_sink: bool = False

    @property
    def exists(self) -> bool:
        """False where the installed transformers is older than the family."""
        return hasattr(transformers, self.config)

    def build(self, host: Host = "eager", dtype: torch.dtype = torch.float32, seed: int = 0) -> PreTrainedModel:
        """A random model in eval mode; its attention is far from uniform."""
        torch.manual_seed(seed)
        config = getattr(transformers, self.config)(**{"pad_token_id": 0, **self.options})
        model = getattr(transformers, self.auto).from_config(config, attn_implementation=host, dtype=torch.float32)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if PROJECTIONS.search(name):
                    parameter.mul_(self.sharpness)
                if NORMS.search(name):  # gains are stored as g or as g - 1
                    parameter.add_(self.sharpness - 1)
                if name.endswith("sinks"):
                    parameter.normal_()
        return model.to(dtype).eval()

    def inputs(self, samples: int = 3, tokens: int = 24, seed: int = 1) -> dict[str, Tensor]:
        """Random inputs of the family's kind."""
        generator = torch.Generator().manual_seed(seed)
        if self.kind == "pixels":
            return {
                "pixel_values": torch.randn(samples, 3, IMAGES["image_size"], IMAGES["image_size"], generator=generator)
            }
        ids = torch.randint(3, VOCABULARY, (samples, tokens), generator=generator)
        return {"input_ids": ids, "decoder_input_ids": ids[:, 5:]} if self.kind == "pairs" else {"input_ids": ids}


FAMILIES: dict[str, Family] = {
    # Decoders with one kind of attention layer.
    "llama": Family("LlamaConfig", GROUPED),
    "gpt2": Family(
        "GPT2Config", {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    ),
    "gpt_neox": Family("GPTNeoXConfig", TEXT),
    "opt": Family("OPTConfig", {**SIZES, "ffn_dim": 48, "max_position_embeddings": 64, "word_embed_proj_dim": 32}),
    "phi": Family("PhiConfig", TEXT),
    "qwen2": Family("Qwen2Config", {**TEXT, "num_key_value_heads": 2}),
    "qwen3": Family("Qwen3Config", GROUPED, sharpness=3.0),
    "mixtral": Family("MixtralConfig", {**GROUPED, "num_local_experts": 2}),
    "cohere": Family("CohereConfig", GROUPED),
    "granite": Family("GraniteConfig", {**TEXT, "num_key_value_heads": 2}),
    "olmo2": Family("Olmo2Config", {**TEXT, "num_key_value_heads": 2}, sharpness=3.0),
    "stablelm": Family("StableLmConfig", {**TEXT, "num_key_value_heads": 2}),
    "gpt_bigcode": Family(
        "GPTBigCodeConfig", {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    ),
    "doge": Family("DogeConfig", {**TEXT, "num_key_value_heads": 2}, sharpness=3.0),
    # Windows, chunks and softcaps.
    "mistral": Family("MistralConfig", {**GROUPED, "sliding_window": 5}),
    "starcoder2": Family("Starcoder2Config", {**TEXT, "num_key_value_heads": 2, "sliding_window": 5}),
    "cohere2": Family("Cohere2Config", {**GROUPED, "sliding_window": 5}),
    "llama4": Family(
        "Llama4TextConfig",
        {**GROUPED, "intermediate_size_mlp": 48, "num_local_experts": 2, "attention_chunk_size": 8}
        | {"use_qk_norm": False},
        sharpness=24.0,
    ),
    "gemma2": Family(
        "Gemma2Config",
        {**GROUPED, "sliding_window": 5, "attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 8},
        hosts=("eager",),
        sharpness=30.0,
    ),
    "gemma3": Family(
        "Gemma3TextConfig",
        {**GROUPED, "sliding_window": 5, "sliding_window_pattern": 2, "query_pre_attn_scalar": 8},
        sharpness=3.0,
    ),
    # Learned sinks.
    "gpt_oss": Family(
        "GptOssConfig",
        {**GROUPED, "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 5},
        hosts=("eager",),
    ),
    "granite_swa": Family("GraniteSWAConfig", GROUPED, hosts=("eager",), sharpness=6.0, eager_omits_sink=True),
    "mimo_v2_flash": Family("MiMoV2FlashConfig", GROUPED, hosts=("eager",)),
    # Latent attention, and keys chosen by an index.
    "deepseek_v3": Family("DeepseekV3Config", {**LATENT, "n_group": 2, "topk_group": 1}, sharpness=40.0),
    "glm_moe_dsa": Family(
        "GlmMoeDsaConfig", {**LATENT, "index_topk": 6, "index_n_heads": 2, "index_head_dim": 16}, sharpness=40.0
    ),
    # Attention beside state-space, convolution and linear layers.
    "jamba": Family(
        "JambaConfig",
        {**GROUPED, "num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2}
        | {"mamba_d_state": 4, "mamba_dt_rank": 4, "use_mamba_kernels": False},
    ),
    "bamba": Family(
        "BambaConfig",
        {**GROUPED, "attn_layer_indices": [1], "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8}
        | {"mamba_n_groups": 1},
    ),
    "falcon_h1": Family(
        "FalconH1Config", {**GROUPED, "mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8}
    ),
    "lfm2": Family("Lfm2Config", {**GROUPED, "layer_types": ["conv", "full_attention"]}),
    "qwen3_next": Family(
        "Qwen3NextConfig",
        {**GROUPED, "num_hidden_layers": 4, "linear_num_value_heads": 2, "linear_num_key_heads": 2, "num_experts": 2}
        | {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "moe_intermediate_size": 16, "num_experts_per_tok": 1}
        | {"shared_expert_intermediate_size": 16},
        sharpness=3.0,
    ),
    # Encoders.
    "bert": Family("BertConfig", TEXT, auto=MASKED, sharpness=20.0),
    "roberta": Family("RobertaConfig", TEXT, auto=MASKED),
    "albert": Family("AlbertConfig", TEXT, auto=MASKED, sharpness=40.0),
    "modernbert": Family(
        "ModernBertConfig", {**TEXT, "local_attention": 6, "global_attn_every_n_layers": 2}, auto=MASKED
    ),
    "esm": Family("EsmConfig", {**TEXT, "mask_token_id": 1}, auto=MASKED),
    "clip_text": Family("CLIPTextConfig", TEXT, auto="AutoModel"),
    # Encoder-decoders.
    "t5": Family(
        "T5Config",
        {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
        | {"decoder_start_token_id": 0},
        auto=PAIRED,
        kind="pairs",
        sharpness=2.0,
    ),
    "bart": Family("BartConfig", TWOFOLD, auto=PAIRED, kind="pairs"),
    "marian": Family(
        "MarianConfig", {**TWOFOLD, "decoder_start_token_id": 0}, auto=PAIRED, kind="pairs", sharpness=40.0
    ),
    # Images.
    "vit": Family("ViTConfig", IMAGES, auto="AutoModel", kind="pixels"),
    "deit": Family("DeiTConfig", IMAGES, auto="AutoModel", kind="pixels"),
    "beit": Family("BeitConfig", IMAGES, auto="AutoModel", kind="pixels"),
    "dinov2": Family("Dinov2Config", IMAGES, auto="AutoModel", kind="pixels"),
    "dinov3": Family("DINOv3ViTConfig", IMAGES, auto="AutoModel", kind="pixels"),
}

LEGACY: dict[str, Family] = {
    "bloom": Family("BloomConfig", {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "mpt": Family(
        "MptConfig", {"vocab_size": VOCABULARY, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64}
    ),
    "falcon": Family("FalconConfig", SIZES),
    "gptj": Family("GPTJConfig", {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4}),
    "deberta": Family("DebertaV2Config", TEXT, auto=MASKED),
}
