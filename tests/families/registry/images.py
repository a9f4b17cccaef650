"""Vision transformers, and one that listens."""

from __future__ import annotations

from tests.families.family import Family
from tests.families.registry.sizes import IMAGES

IMAGE_ENCODERS: dict[str, Family] = {
    name: Family(config, {**IMAGES, **options}, auto="AutoModel", kind="pixels")
    for name, config, options in (
        ("vit", "ViTConfig", {}),
        ("deit", "DeiTConfig", {}),
        ("beit", "BeitConfig", {}),
        ("ijepa", "IJepaConfig", {}),
        ("yolos", "YolosConfig", {"image_size": [24, 24]}),
        ("dinov2", "Dinov2Config", {}),
        ("dinov2_with_registers", "Dinov2WithRegistersConfig", {}),
        ("dinov3", "DINOv3ViTConfig", {}),
        ("siglip_vision", "SiglipVisionConfig", {}),
        ("clip_vision", "CLIPVisionConfig", {}),
    )
}

LISTENERS: dict[str, Family] = {
    "wav2vec2": Family(
        "Wav2Vec2Config",
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
        | {"conv_dim": (8, 8), "conv_stride": (5, 4), "conv_kernel": (10, 8)}
        | {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "vocab_size": 97},
        auto="AutoModel",
        kind="waves",
    ),
}
