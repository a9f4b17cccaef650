"""What the general rule cannot know of a family: fields of its configuration, by model type."""

from __future__ import annotations

from typing import Any

STATES = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8}
SERIES = {"prediction_length": 8, "context_length": 16, "lags_sequence": [1, 2, 3], "num_time_features": 1}
RESNET: dict[str, Any] = {
    "use_timm_backbone": False,
    "backbone": None,
    "use_pretrained_backbone": False,
    "backbone_kwargs": None,
    "backbone_config": {
        "model_type": "resnet",
        "hidden_sizes": [8, 8, 16, 16],
        "depths": [1, 1, 1, 1],
        "embedding_size": 8,
        "out_features": ["stage2", "stage3", "stage4"],
    },
}
HEADED = {"head_dim": 8, "num_key_value_heads": 2}

QSA = {
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 8,
    "indexer_budget": 8,
    "indexer_compress_ratio": 2,
}
WINDOWED = {"vision_config": {"window_size": 32}}
NEMOTRON = {
    "layers_block_type": ["mamba", "attention", "moe", "mlp"],
    "num_hidden_layers": 4,
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "ssm_state_size": 8,
    "chunk_size": 8,
}
DEPTH = {
    "backbone_config": {"out_features": ["stage1", "stage2"], "out_indices": [1, 2], "reshape_hidden_states": False},
    "neck_hidden_sizes": [16, 32],
    "reassemble_factors": [2, 1],
}
SCALES = {"encoder_in_channels": [32, 64, 128], "decoder_in_channels": [32, 32, 32], "backbone_config": ...}
OF_RESNET = {**SCALES, "encoder_in_channels": [512, 1024, 2048]}
HIERA: dict[str, Any] = {
    "backbone_channel_list": [128, 64, 32, 16],
    "backbone_config": {
        "hidden_size": 16,
        "embed_dim_per_stage": [16, 32, 64, 128],
        "num_attention_heads_per_stage": [1, 2, 4, 8],
        "blocks_per_stage": [1, 1, 2, 1],
        "global_attention_blocks": [3],
        "window_size_per_stage": [4, 4, 4, 4],
        "window_positional_embedding_background_size": [4, 4],
    },
}
PROMPTED = {"prompt_encoder_config": {"image_size": 32, "patch_size": 16}}
FOUR = {"backbone_config": {"out_features": ["stage1", "stage2", "stage3", "stage4"]}}
STAGES = {"depths": [1, 1], "num_heads": [2, 4], "embed_dim": 16, "window_size": 4, "image_size": 32, "patch_size": 4}
ROTARY = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
COMPASS = {
    "layer_types": ["sliding_attention", "full_attention"],
    "rope_parameters": {"sliding_attention": ROTARY, "full_attention": ROTARY},
}

TOKENIZER = {"num_filters": 2, "downsampling_ratios": [2, 4], "depths": [1, 1, 1]}
# timm's own tiny models: one of patches of 16 × 16 pixels, and one of stages, whose last is of 32 × 32.
TIMM_PATCHES = {"architecture": "test_vit", "model_args": {"embed_dim": 64}}
TIMM_STAGES = {"architecture": "test_resnet", "hidden_size": 96, "image_size": 128, "do_pooling": False}
TIMM_LEVELS = {
    "backbone_config": {
        "architecture": "test_resnet",
        "num_classes": 2,
        "model_args": {"in_chans": 3, "features_only": True, "out_indices": [1, 2, 3, 4]},
    },
    "backbone_channel_list": [96, 192, 48, 32],
    "backbone_feature_sizes": [[8, 8], [4, 4], [2, 2]],
}
KEYPOINTS = {"keypoint_detector_config": {"keypoint_decoder_dim": 65}}
DINO = {"image_size": 32, "patch_size": 8}

CORRECTIONS: dict[str, dict[str, Any]] = {
    "vibevoice": {"audio_config": TOKENIZER, "semantic_model_config": TOKENIZER},
    "vibevoice_asr": {
        "acoustic_tokenizer_encoder_config": TOKENIZER,
        "semantic_tokenizer_encoder_config": TOKENIZER,
        "acoustic_tokenizer_chunk_size": 1600,
    },
    "eomt": {"num_blocks": 1},
    "eomt_dinov3": {"num_blocks": 1},
    "sapiens2": {"num_key_value_heads_per_layer": [4, 2]},
    "clvp": {
        "text_config": {"hidden_size": 128},
        "speech_config": {"hidden_size": 128},
        "decoder_config": {"feature_size": 16},
    },
    "seggpt": {
        "image_size": [64, 32],
        "num_hidden_layers": 5,
        "merge_index": 0,
        "intermediate_hidden_state_indices": [1, 2, 3, 4],
    },
    "depth_pro": {
        "patch_size": 32,
        "intermediate_hook_ids": [1, 0],
        "intermediate_feature_dims": [32, 32],
        "scaled_images_feature_dims": [32, 32, 32],
        "merge_padding_value": 1,
        "image_model_config": DINO,
        "patch_model_config": DINO,
        "fov_model_config": DINO,
    },
    "tvp": {
        "backbone_config": RESNET["backbone_config"] | {"out_features": ["stage4"]},
        "visual_prompt_size": 4,
        "max_img_size": 64,
    },
    "efficientloftr": {"num_attention_heads": 8, "out_features": [8, 8, 16, 32], "stage_num_blocks": [1, 1, 1, 1]},
    "superglue": {**KEYPOINTS, "gnn_layers_types": ["self", "cross"], "keypoint_encoder_sizes": [16, 32]},
    "lightglue": KEYPOINTS,
    "sam3_tracker": {"vision_config": {"backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]]}},
    "pp_doclayout_v2": {
        **OF_RESNET,
        "class_thresholds": [0.0, 0.0],
        "class_order": [0, 1],
        "reading_order_config": {"start_token_id": 0, "pad_token_id": 1, "end_token_id": 2, "pred_token_id": 3},
    },
    "pp_doclayout_v3": {**OF_RESNET, "x4_feat_dim": 128},
    "fastspeech2_conformer_with_hifigan": {"vocoder_config": {"model_in_dim": 16}},
    "timm_wrapper": TIMM_PATCHES,
    "timm_backbone": {"backbone": "test_resnet"},
    "perception_lm": {"vision_config": TIMM_PATCHES},
    "fast_vlm": {"vision_config": TIMM_STAGES},
    "gemma3n": {"vision_config": TIMM_STAGES, "vision_soft_tokens_per_image": 16},
    "pe_video": {"video_config": {"vision_config": TIMM_PATCHES}},
    "pe_audio_video": {"audio_video_config": {"video_config": {"vision_config": TIMM_PATCHES}}},
    "edgetam_vision_model": TIMM_LEVELS,
    "edgetam": {"vision_config": TIMM_LEVELS, **PROMPTED},
    "muse_glimmer_assistant": {"target_layer_ids": [0, 1]},
    "autoformer": SERIES,
    "informer": SERIES,
    "time_series_transformer": SERIES,
    "bamba": {**STATES, "attn_layer_indices": [1]},
    "falcon_h1": {**STATES, "mamba_d_ssm": 64},
    "granitemoehybrid": {**STATES, "layer_types": ["mamba", "attention"], "num_hidden_layers": 2},
    "bridgetower": {"hidden_size": 64, "vision_config": {"hidden_size": 64}, "text_config": {"hidden_size": 64}},
    "chameleon": {"vocabulary_map": {"<image>": 120}},
    "emu3": {"vocabulary_map": {"<image>": 120}},
    "conditional_detr": RESNET,
    "dab-detr": RESNET,
    "deformable_detr": RESNET,
    "table-transformer": RESNET,
    "omdet-turbo": {
        "apply_layernorm_after_vision_backbone": False,
        "encoder_hidden_dim": 64,
        "decoder_hidden_dim": 64,
        "encoder_in_channels": [32, 64, 128],
        "vision_features_channels": [64, 64, 64],
        "backbone_config": {
            "model_type": "swin",
            "embed_dim": 16,
            "depths": [1, 1, 1, 1],
            "num_heads": [2, 2, 4, 4],
            "image_size": 32,
            "patch_size": 4,
            "window_size": 4,
            "out_indices": [2, 3, 4],
        },
    },
    "hunyuan_v1_dense": HEADED,
    "hunyuan_v1_moe": HEADED,
    "ministral": HEADED,
    "nemotron": HEADED,
    "esmc": {"vocab_size": 64},
    "deepseek_v2": {"num_experts_per_tok": 2, "n_group": 2, "topk_group": 1},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2},
    "mamba2": {"num_heads": 4, "head_dim": 16},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "num_hidden_layers": 2},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "wav2vec2-bert": {"vocab_size": 32},
    "wav2vec2-conformer": {"vocab_size": 32},
    "longcat_flash": {"zero_expert_num": 2, "n_routed_experts": 4},
    "xmod": {"default_language": "en_XX"},
    "lw_detr": {"backbone_config": {"num_windows": 4, "image_size": 32}, "projector_scale_factors": [1.0]},
    "qwen4_exp_text": QSA,
    "qwen4_exp": {"text_config": QSA},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2},
    "glm5_next": {"text_config": {"index_topk": 6, "index_kpool": 2}},
    "hunyuan_vl": {"text_config": HEADED},
    "fun_asr_nano": {"adaptor_config": {"intermediate_size": 8}},
    "molmo2": {"adapter_config": {"vision_feature_layer": [0, 1]}},
    "swin2sr": {"embed_dim": 24, "depths": [1, 1], "num_heads": [2, 2]},
    "reformer": {"is_decoder": True, "axial_pos_embds_dim": [16, 16], "axial_pos_shape": [8, 16]},
    "cohere_compass_text": COMPASS,
    "cohere_compass": {"text_config": COMPASS},
    "neomme": {"head_dim": 16},
    "step3p7": {"text_config": {"sliding_window": 5}},
    "aria": {"projector_patch_to_query_dict": {16: 6}},
    "llava_next": {"image_grid_pinpoints": [[32, 32]]},
    "llava_next_video": {"image_grid_pinpoints": [[32, 32]]},
    "llava_onevision": {"image_grid_pinpoints": [[32, 32]]},
    "vipllava": {"vision_feature_layers": [-1, -2]},
    "qwen2_5_vl": WINDOWED,
    "exaone4_5": WINDOWED,
    "hyperclovax_vision_v2": WINDOWED,
    "blip-2": {"image_token_index": 120},
    "instructblip": {"image_token_index": 120},
    "instructblipvideo": {"video_token_index": 120},
    "layoutlmv3": {"coordinate_size": 4, "shape_size": 8, "input_size": 32, "patch_size": 8},
    "lilt": {"hidden_size": 48, "intermediate_size": 64, "channel_shrink_ratio": 2},
    "bros": {"hidden_size": 64},
    "moonshine": {"encoder_num_key_value_heads": 4, "decoder_num_key_value_heads": 4},
    "sam": {"vision_config": {"num_pos_feats": 16}},
    "sam_hq": {"vision_config": {"num_pos_feats": 16}},
    "deepseek_ocr2": {"text_config": {"mlp_layer_types": ["dense", "dense"]}},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "clap": {"audio_config": {"spec_size": 64, "num_mel_bins": 32, "hidden_size": 256}},
    "perceiver": {
        "d_latents": 32,
        "d_model": 32,
        "num_latents": 6,
        "num_blocks": 1,
        "num_self_attends_per_block": 2,
        "num_self_attention_heads": 4,
        "num_cross_attention_heads": 4,
        "max_position_embeddings": 64,
    },
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "detr": {**RESNET},
    "depth_anything": DEPTH,
    "prompt_depth_anything": DEPTH,
    "tipsv2_dpt": DEPTH,
    "zoedepth": DEPTH,
    "chmv2": {
        "patch_size": 8,
        "post_process_channels": [16, 32, 64, 128],
        "backbone_config": {"num_hidden_layers": 4, "out_indices": [1, 2, 3, 4], "return_class_token": True},
    },
    "moonshine_streaming": {"num_key_value_heads": 4, "encoder_config": {"num_key_value_heads": 4}},
    "qwen2_5_omni_thinker": WINDOWED,
    "zamba": {"layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"], "num_hidden_layers": 4},
    "align": {"vision_config": {"width_coefficient": 0.1, "depth_coefficient": 0.1}},
    "florence2": {
        "vision_config": {
            "embed_dim": [16, 32, 32, 32],
            "num_heads": [2, 4, 4, 4],
            "num_groups": [2, 4, 4, 4],
            "depths": [1, 1, 1, 1],
        }
    },
    "rt_detr": OF_RESNET,
    "rt_detr_v2": OF_RESNET,
    "pp_doclayout_v4": OF_RESNET,
    "d_fine": SCALES,
    "deimv2": SCALES,
    "levit": {"patch_size": 16},
    "grounding-dino": {"num_queries": 2},
    "mm-grounding-dino": {"num_queries": 2},
    "mobilevitv2": {"image_size": 64},
    "diffusion_gemma": {"text_config": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16}},
    "sam2": {"vision_config": HIERA | {"backbone_feature_sizes": [[8, 8], [4, 4], [2, 2]]}, **PROMPTED},
    "sam2_vision_model": HIERA,
    "sam2_hiera_det_model": HIERA["backbone_config"],
    "ernie4_5_vl_moe": {"text_config": {"rope_parameters": {**ROTARY, "mrope_section": [1, 1, 2]}}},
    "nemotron_h_omni": {"vision_config": {"video_temporal_patch_size": 2}, "text_config": NEMOTRON},
    "nemo_speechlm": {"text_config": NEMOTRON},
    "xcodec2": {"quantization_dim": 64},
    "neucodec": {"quantization_dim": 64},
    "xcodec": {
        "target_bandwidths": [6, 12],
        "acoustic_model_config": {"downsampling_ratios": [5, 2, 2], "upsampling_ratios": [5, 2, 2]},
    },
    "granite4_vision": {
        "downsample_rate": "1/2",
        "deepstack_layer_map": [[0, 0]],
        "spatial_target_layers": [0, 1, 0, 1],
        "image_grid_pinpoints": [[32, 32]],
        "vision_config": {"hidden_size": 128},
        "qformer_config": {"cross_attention_frequency": 1, "hidden_size": 128, "encoder_hidden_size": 128},
    },
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0}},
    "mask2former": {**FOUR, "mask_feature_size": 32},
    "oneformer": {**FOUR, "mask_dim": 32, "conv_dim": 32},
    "cvt": {"depth": [1, 2, 3]},
    "mimi": {"vector_quantization_hidden_dimension": 32},
    "mimi_decoder": {"vector_quantization_hidden_dimension": 32},
    "speecht5": {"vocab_size": 128},
    "swin": STAGES,
    "swinv2": STAGES,
    "donut-swin": STAGES,
    "maskformer-swin": STAGES,
    "nemotron_h": NEMOTRON,
}
