"""Models of several towers: each stack is measured by itself, or the record says why it is not."""

from __future__ import annotations

from tests.families.family import Family
from tests.families.inputs import IMAGE_TOKEN, PATCH
from tests.families.registry.sizes import GROUPED, IMAGES, SHARED, TEXT

SEEN_AND_READ = "AutoModelForImageTextToText"
SIGLIP = {**IMAGES, "model_type": "siglip_vision_model", "vision_use_head": False}
PLACES = {"image_token_id": IMAGE_TOKEN, "vision_start_token_id": 94, "vision_end_token_id": 93, "video_token_id": 92}
AXES = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}}
PATCHES = {"depth": 2, "num_heads": 4, "hidden_size": 32, "in_channels": 3, "patch_size": PATCH} | {
    "spatial_merge_size": 2,
    "temporal_patch_size": 1,
}
TOWERS = {"vision": "model.vision_tower", "decoder": "model.language_model"}

MULTIMODAL: dict[str, Family] = {
    "clip": Family(
        "CLIPConfig",
        {"text_config": {**TEXT, "projection_dim": 16}, "vision_config": {**IMAGES, "projection_dim": 16}}
        | {"projection_dim": 16},
        auto="AutoModel",
        kind="text_and_image",
        sharpness=8.0,
        towers={"vision": "vision_model", "encoder": "text_model"},
    ),
    "llava": Family(
        "LlavaConfig",
        {"vision_config": {**IMAGES, "model_type": "clip_vision_model"}}
        | {"text_config": {**GROUPED, "model_type": "llama"}, "image_token_id": IMAGE_TOKEN}
        | {"vision_feature_select_strategy": "default", "vision_feature_layer": -1},
        auto=SEEN_AND_READ,
        kind="image_in_text",
        towers=TOWERS,
    ),
    "paligemma": Family(
        "PaliGemmaConfig",
        {"vision_config": SIGLIP, "text_config": {**GROUPED, "model_type": "gemma"}}
        | {"image_token_id": IMAGE_TOKEN, "projection_dim": 32, "hidden_size": 32},
        auto=SEEN_AND_READ,
        kind="image_in_typed_text",
        sharpness=10.0,
        towers={"vision": "model.vision_tower", "encoder": "model.language_model"},
    ),
    "gemma3_vision": Family(
        "Gemma3Config",
        {"vision_config": SIGLIP, "text_config": {**GROUPED, "model_type": "gemma3_text", "sliding_window": 5}}
        | {"image_token_id": IMAGE_TOKEN, "image_token_index": IMAGE_TOKEN, "mm_tokens_per_image": 36}
        | {"boi_token_index": 94, "eoi_token_index": 93},
        auto=SEEN_AND_READ,
        kind="image_in_typed_text",
        sharpness=4.0,
        towers=TOWERS,
    ),
    "smolvlm": Family(
        "SmolVLMConfig",
        {"vision_config": IMAGES, "text_config": {**GROUPED, "model_type": "llama", "pad_token_id": 0}}
        | {"image_token_id": IMAGE_TOKEN, "scale_factor": 2},
        auto=SEEN_AND_READ,
        kind="tiles_in_text",
        towers={"vision": "model.vision_model", "decoder": "model.text_model"},
    ),
    "qwen2_vl": Family(
        "Qwen2VLConfig",
        {"vision_config": {**PATCHES, "embed_dim": 32, "mlp_ratio": 2}, "text_config": {**SHARED, **AXES}} | PLACES,
        auto=SEEN_AND_READ,
        kind="patches_in_text",
        towers={"decoder": TOWERS["decoder"]},
    ),
    "qwen3_vl": Family(
        "Qwen3VLConfig",
        {
            "vision_config": {**PATCHES, "out_hidden_size": 32, "intermediate_size": 48, "num_position_embeddings": 36}
            | {"deepstack_visual_indexes": [0]}
        }
        | {"text_config": {**GROUPED, **AXES}}
        | PLACES,
        auto=SEEN_AND_READ,
        kind="patches_in_text",
        towers={"decoder": TOWERS["decoder"]},
        sharpness=3.0,
    ),
}
