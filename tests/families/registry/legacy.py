"""Families with attention of their own, outside transformers' interface: measured from the maps they return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.families.family import Family
from tests.families.inputs import VOCABULARY
from tests.families.registry.sizes import GPT, IMAGES, MASKED, PAIRED, SIZES, TEXT, TWOFOLD

WORDS = {"vocab_size": VOCABULARY}
XLM = {**WORDS, "n_words": VOCABULARY, "emb_dim": 32, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 64}


def _decoder(config: str, options: Mapping[str, Any], sharpness: float = 12.0) -> Family:
    return Family(config, options, hosts=("eager",), sharpness=sharpness)


def _encoder(config: str, options: Mapping[str, Any], sharpness: float = 20.0, auto: str = MASKED) -> Family:
    return Family(config, options, auto=auto, hosts=("eager",), sharpness=sharpness)


def _pair(config: str, options: Mapping[str, Any], sharpness: float = 12.0) -> Family:
    return Family(config, options, auto=PAIRED, kind="pairs", hosts=("eager",), sharpness=sharpness)


COLLECTED: dict[str, Family] = {
    "bloom": _decoder("BloomConfig", {**WORDS, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "mpt": _decoder("MptConfig", {**WORDS, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64}),
    "falcon": _decoder("FalconConfig", SIZES),
    "falcon_alibi": _decoder("FalconConfig", {**SIZES, "alibi": True}),
    "gptj": _decoder("GPTJConfig", {**GPT, "rotary_dim": 4}),
    "gpt_neo": _decoder(
        "GPTNeoConfig",
        {**WORDS, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 64}
        | {"attention_types": [[["global", "local"], 1]], "window_size": 5},
    ),
    "codegen": _decoder("CodeGenConfig", {**GPT, "rotary_dim": 4}),
    "xglm": _decoder(
        "XGLMConfig",
        {**WORDS, "d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4, "max_position_embeddings": 64},
        sharpness=24.0,
    ),
    "gpt_neox_japanese": _decoder("GPTNeoXJapaneseConfig", {**SIZES, "intermediate_multiple_size": 2}),
    "openai_gpt": _decoder("OpenAIGPTConfig", GPT, sharpness=300.0),
    "trocr": _decoder(
        "TrOCRConfig",
        {**WORDS, "d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 48}
        | {"max_position_embeddings": 64},
    ),
    "xlnet": _decoder(
        "XLNetConfig", {**WORDS, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}, sharpness=1000.0
    ),
    "xlm": _encoder("XLMConfig", XLM),
    "flaubert": _encoder("FlaubertConfig", XLM),
    "roformer": _encoder("RoFormerConfig", TEXT),
    "rembert": _encoder(
        "RemBertConfig", {**TEXT, "input_embedding_size": 16, "output_embedding_size": 16}, sharpness=300.0
    ),
    "megatron_bert": _encoder("MegatronBertConfig", TEXT),
    "deberta": _encoder("DebertaConfig", TEXT),
    "deberta_v2": _encoder("DebertaV2Config", TEXT),
    "mpnet": _encoder("MPNetConfig", TEXT),
    "ibert": _encoder("IBertConfig", TEXT),
    "luke": _encoder("LukeConfig", {**TEXT, "entity_vocab_size": 9, "entity_emb_size": 16}),
    "convbert": _encoder("ConvBertConfig", {**TEXT, "embedding_size": 32}),
    "tapas": _encoder("TapasConfig", TEXT),
    "layoutlmv3": _encoder(
        "LayoutLMv3Config",
        {**TEXT, "visual_embed": False, "coordinate_size": 4, "shape_size": 8},
        auto="AutoModelForTokenClassification",
    ),
    "big_bird": _encoder("BigBirdConfig", {**TEXT, "attention_type": "original_full"}),
    "nystromformer": _encoder("NystromformerConfig", TEXT),
    "data2vec_vision": Family("Data2VecVisionConfig", IMAGES, auto="AutoModel", kind="pixels", hosts=("eager",)),
    "mvp": _pair("MvpConfig", TWOFOLD),
    "fsmt": _pair(
        "FSMTConfig",
        {**TWOFOLD, "src_vocab_size": VOCABULARY, "tgt_vocab_size": VOCABULARY, "langs": ["en", "de"]}
        | {"use_cache": False},
        sharpness=24.0,
    ),
}

REFUSED: dict[str, Family] = {
    "squeezebert": _encoder("SqueezeBertConfig", {**TEXT, "embedding_size": 32}),
    "longformer": _encoder("LongformerConfig", {**TEXT, "attention_window": [8, 8]}),
    "funnel": _encoder(
        "FunnelConfig",
        {**WORDS, "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 48, "block_sizes": [1, 1]}
        | {"num_decoder_layers": 1},
    ),
    "canine": _encoder("CanineConfig", TEXT, auto="AutoModel"),
    "yoso": _encoder("YosoConfig", TEXT),
    "mra": _encoder("MraConfig", TEXT),
    "fnet": _encoder("FNetConfig", TEXT),
    "rwkv": _decoder("RwkvConfig", {**WORDS, "hidden_size": 32, "num_hidden_layers": 2}),
    "mamba": _decoder("MambaConfig", {**WORDS, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}),
    "led": _pair(
        "LEDConfig",
        {**TWOFOLD, "attention_window": 4, "max_encoder_position_embeddings": 64}
        | {"max_decoder_position_embeddings": 64},
    ),
    "prophetnet": _pair(
        "ProphetNetConfig",
        {**WORDS, "hidden_size": 32, "max_position_embeddings": 64, "ngram": 2, "num_buckets": 8}
        | {"num_encoder_layers": 2, "num_encoder_attention_heads": 4, "encoder_ffn_dim": 48}
        | {"num_decoder_layers": 2, "num_decoder_attention_heads": 4, "decoder_ffn_dim": 48},
    ),
    "swinv2": Family(
        "Swinv2Config",
        {"image_size": 24, "patch_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "window_size": 3},
        auto="AutoModel",
        kind="pixels",
        hosts=("eager",),
    ),
}
