"""A tiny configuration of any model type: every field that is a size is made small, in all parts alike.

Equal things stay equal because every width is one width, every vocabulary one vocabulary, and so on; what only one
family has stands in `corrections`.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers
from transformers import PreTrainedConfig

WIDTH, INNER, HEADS, HEAD, LAYERS = 32, 64, 4, 8, 2
VOCABULARY, POSITIONS = 128, 128
SIDE, PATCH = 32, 8
ORDINARY = 100  # ids below stand for words, those above for places of other modalities
PAD, BOS, EOS = 0, 1, 2

# The first pattern that a field's whole name matches says its size.
SIZES: tuple[tuple[str, int], ...] = (
    (r".*vocab_size.*|n_words|.*_vocab", VOCABULARY),
    (r"(num|.*_num|n)_mel_bins|n_mels|mel_dim|num_mels", 16),
    (r".*(max_position_embeddings|_positions|max_seq_len|max_sequence_length|max_length|max_target_length)", POSITIONS),
    (r".*(qk_head_dim)", 2 * HEAD),
    (r".*(head_dim|head_size|dim_head|_head_dim|d_kv|d_head|rotary_dim|channels_per_head|kv_channels)", HEAD),
    (r".*(intermediate|ffn|inner|mlp_dim|mlp_hidden|feedforward|feed_forward|d_ff|fc_dim).*", INNER),
    (r".*(attention_heads|num_heads|n_heads?|num_head|_heads|nhead)", HEADS),
    (r"num_(local_|routed_)?experts|n_routed_experts|moe_num_experts|num_experts.*|moe_num_experts", 4),
    (r".*(experts_per_tok|top_?k_experts|moe_topk?|moe_k|num_selected_experts)|expert_top_k", 2),
    (r"n_group|num_expert_group", 2),
    (r"topk_group", 1),
    (r".*lora_rank", 16),
    (r"index_topk", 6),
    (r".*(num_hidden_layers|num_layers|n_layers?|encoder_layers|decoder_layers|_layers|depth)", LAYERS),
    (r"sliding_window(_size)?|window_size|attention_chunk_size|local_radius|attention_context_left", 5),
    (r"local_attention", 8),
    (r".*(image|input|crop|pretrain_image|max_img)_size", SIDE),
    (r".*patch_size|tubelet_size.*", PATCH),
    (r"num_image_tokens|image_seq_length|image_seq_len|mm_tokens_per_image", (SIDE // PATCH) ** 2),
    (r"num_positions|num_position_embeddings", (SIDE // PATCH) ** 2),
    (r".*(num_queries|num_query_tokens|num_latents|n_latents|query_num|num_object_queries)", 6),
    (r"num_frames", 2),
    (r"num_conv_pos_embeddings", 8),
    (r"num_conv_pos_embedding_groups|upsample_groups", 2),
    (r".*vocab.*_size|.*_vocab_size", VOCABULARY),
    (r"(.*conv.*|.*upsample.*|.*codebook.*)_(groups|stride|kernel)", 2),
    (r"codebook_size|num_embeddings|audio_vocab.*", VOCABULARY),
    (
        r".*(hidden_size.*|d_model|n_embd|embed_dim|emb_dim|_dim|^dim|embedding_dim|embedding_size|projection_size|hidden_dim"
        r"|out_hidden_size|width|_channels|feature_size|_features|embed_size|output_dim|input_dim|num_channels_out|_units)",
        WIDTH,
    ),
)
FIXED = re.compile(
    r"num_channels|in_channels|num_labels|num_color_channels|.*_ratio|type_vocab_size|num_return.*|start_n_top|end_n_top"
    r"|.*_token_id|.*_token_index|chunk_size_feed_forward|mask_.*|.*_prob|hidden_sizes|rope_.*|.*_loss_.*"
    r"|temporal_patch_size|num_register_tokens|.*num_mtp.*|input_channels"
)
KEY_VALUES = re.compile(r".*(num_key_value_heads|n_kv_heads?|num_kv_heads|kv_n_heads|multi_query_group_num)")
PLACE = re.compile(r"(image|audio|video)_token_(id|index)")
SPECIAL = re.compile(r"(.*?)_?(token_id|token_index|token|id)s?$")


def shrunk(kind: str, corrections: Mapping[str, Any] | None = None) -> PreTrainedConfig:
    """The tiny configuration of a model type, with what its family needs beside."""
    from tests.families.sweep.zoo import config_class

    options = dict(corrections or {})
    cls = config_class(kind)
    places: dict[str, int] = {"pad": PAD, "bos": BOS, "eos": EOS, "decoder_start": BOS, "cls": BOS, "sep": EOS}
    config = cls(**merged(_small(cls(**options.pop("default", {})), places), options))
    _share_heads(config)
    return config


def _share_heads(config: PreTrainedConfig) -> None:
    """Write down how a head's frequencies are shared by time, height and width, where the code has sizes of its own."""
    package = sys.modules[type(config).__module__].__file__
    uses = any("mrope_section" in path.read_text() for path in Path(str(package)).parent.glob("modeling_*.py"))
    parts = [value for value in vars(config).values() if isinstance(value, PreTrainedConfig)]
    for part in parts:
        _share_heads(part)
    rotary = getattr(config, "rope_parameters", None)
    if uses and isinstance(rotary, dict):
        kinds = [value for value in rotary.values() if isinstance(value, dict)] or [rotary]
        for kind in kinds:
            if sum(kind.get("mrope_section", ())) != sum(_sections(kind)):
                kind["mrope_section"] = _sections(kind)


def merged(options: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Options with others laid over them, part by part; the value `...` takes one away."""
    found = dict(options)
    for name, value in more.items():
        if value is ...:
            found.pop(name, None)
        elif isinstance(value, Mapping) and isinstance(found.get(name), Mapping):
            found[name] = merged(found[name], value)
        else:
            found[name] = value
    return found


def _small(config: PreTrainedConfig, places: dict[str, int]) -> dict[str, Any]:
    fields = {field.name: field for field in dataclasses.fields(config)}
    found: dict[str, Any] = {}
    layers = _chosen_layers(config)
    count = next((value for name in COUNTS if _is_int(value := _value(config, fields, name))), None)
    stages = _stages(config)
    for name in fields:
        value = _value(config, fields, name)
        if isinstance(value, PreTrainedConfig):
            found[name] = _small(value, places) | {"model_type": value.model_type}
        elif isinstance(value, dict) and "mrope_section" in value:
            found[name] = value | {"mrope_section": _sections(value)}
        elif name.endswith(("token_id", "token_index", "token_ids")) and (value is not None or PLACE.match(name)):
            found[name] = _special(name, value, places)
        elif name in stages:
            found[name] = stages[name]
        elif isinstance(value, (list, tuple)) and count and len(value) == count and count > 2:
            found[name] = [value[index] for index in layers]
        elif isinstance(value, bool) or FIXED.fullmatch(name):
            continue
        elif _default(fields[name]) is None and value is not None and not KEY_VALUES.fullmatch(name):
            continue  # which the configuration works out from the others
        elif (small := _size(config, name, value)) is not None:
            found[name] = len(layers) if small == LAYERS and name in COUNTS else small
    return found


def _value(config: PreTrainedConfig, fields: Mapping[str, dataclasses.Field[Any]], name: str) -> Any:
    """A field's value; its default where the layers of the model differ in it."""
    try:
        return getattr(config, name, None)
    except Exception:
        return _default(fields[name])


def _sections(rotary: Mapping[str, Any]) -> list[int]:
    """How the frequencies of a head are shared by time, height and width."""
    half = int(HEAD * rotary.get("partial_rotary_factor", 1.0)) // 2
    return [half - 2 * (half // 3 or 1), half // 3 or 1, half // 3 or 1]


def _stages(config: PreTrainedConfig) -> dict[str, Any]:
    """Fields of models whose width grows from stage to stage, and of convolutions before sound."""
    values = vars(config)
    found: dict[str, Any] = {}
    depths = next(
        (values[name] for name in ("depths", "layers_per_stage", "depth") if _is_list(values.get(name))), None
    )
    for name in GROWING if depths else ():
        if _is_list(value := values.get(name)) and len(value) <= 5:
            found[name] = [GROWN[name] * 2**index for index in range(len(value))]
    if depths:
        found |= {
            name: [1] * len(value)
            for name in ("depths", "layers_per_stage", "depth")
            if _is_list(value := values.get(name))
        }
        if _is_int(values.get("embed_dim")) and "num_heads" in found:
            found["embed_dim"] = 16
        found |= {"window_size": 2} if _is_int(values.get("window_size")) else {}
    if _is_list(dims := values.get("conv_dim")):
        for name in ("conv_dim", "conv_stride", "conv_kernel"):
            if _is_list(value := values.get(name)) and len(value) == len(dims):
                found[name] = [WIDTH] * 3 if name == "conv_dim" else list(value)[:3]
        found["num_feat_extract_layers"] = 3
    return found


GROWN = {
    "hidden_sizes": 16,
    "embed_dims": 16,
    "num_heads": 2,
    "num_attention_heads": 2,
    "encoder_hidden_sizes": 16,
    "neck_hidden_sizes": 16,
}
GROWING = tuple(GROWN)
COUNTS = ("num_hidden_layers", "n_layer", "num_layers")


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) > 1 and all(map(_is_int, value))


def _size(config: PreTrainedConfig, name: str, value: Any) -> Any:
    if KEY_VALUES.fullmatch(name):
        if not _is_int(value):
            return None
        heads = next(
            (
                vars(config)[other]
                for other in ("num_attention_heads", "n_heads", "num_heads")
                if _is_int(vars(config).get(other))
            ),
            None,
        )
        return value if value == 1 else HEADS if heads == value else 2
    size = next((size for pattern, size in SIZES if re.fullmatch(pattern, name)), None)
    if size is None:
        return None
    if _is_int(value):
        return min(size, value) if value > 0 else None
    if isinstance(value, (list, tuple)) and value and all(map(_is_int, value)):
        if name.endswith(("image_size", "patch_size")):
            return [size] * len(value)
        return None
    return None


def _chosen_layers(config: PreTrainedConfig) -> list[int]:
    """Layers of every kind that the model has, the first of each."""
    count = getattr(config, "num_hidden_layers", None)
    if not isinstance(count, int) or count < 2:
        return [0, 1]
    lists = [
        value
        for value in vars(config).values()
        if isinstance(value, (list, tuple)) and len(value) == count and count > 2
    ]
    seen: dict[str, int] = {}
    for index in range(count):
        seen.setdefault(str([values[index] for values in lists]), index)
    chosen = sorted(seen.values())[:4]
    return chosen if len(chosen) > 1 else [0, 1]


def _special(name: str, value: Any, places: dict[str, int]) -> Any:
    stem = SPECIAL.fullmatch(name).group(1)  # type: ignore[union-attr]
    if isinstance(value, (list, tuple)):
        return [places.get(stem, EOS)] * min(1, len(value))
    if stem not in places:
        places[stem] = VOCABULARY - 1 - len(places) + 6
    return places[stem]


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return None if field.default_factory is dataclasses.MISSING else field.default_factory()


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


__all__ = ["shrunk", "transformers"]
