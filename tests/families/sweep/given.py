"""What a tiny model is given: random inputs by the names of its forward pass, whole, padded, or one row alone."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from operator import attrgetter

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto

from tests.families.sweep.own import own
from tests.families.sweep.parts import LENGTH, ROWS, SHORTER, TARGET, Given, Masked, Part, Shaped
from tests.families.sweep.shrink import ORDINARY, PAD, PATCH, SIDE

# Models that do not complain where a text has no places for their sixteen features: the id that stands for one.
SILENT = {"pi0": "vlm_config.image_token_id", "vibevoice_asr": "audio_token_id"}


def parameters(model: PreTrainedModel) -> set[str]:
    return set(inspect.signature(model.forward).parameters)


def recipes(model: PreTrainedModel) -> Iterator[Given]:
    """Inputs to try, the richest first: another form of pictures or sounds where one does not fit, text alone last."""
    names = parameters(model)
    generator = torch.Generator().manual_seed(1)
    texts = _texts(model, names, generator)
    pictures: list[tuple[str, Given] | None] = list(_pictures(model, names, generator))
    sounds: list[tuple[str, Given] | None] = list(_sounds(model, names, generator))
    others = own(model, names, generator)
    pictures = [*pictures, None] if pictures and "input_ids" in names else pictures
    sounds = [*sounds, None] if sounds and "input_ids" in names else sounds
    for picture, sound in itertools.product(pictures or [None], sounds or [None]):
        named = "+".join(["text"] * bool(texts) + [form for form, _ in filter(None, (picture, sound))]) or "its own"
        parts = [part for found in filter(None, (picture, sound)) for part in found[1].parts]
        extra = {name: value for found in filter(None, (picture, sound)) for name, value in found[1].extra.items()}
        yield Given((*texts, *parts), {**others, **extra}, named)


def _texts(model: PreTrainedModel, names: set[str], generator: torch.Generator) -> list[Part]:
    found = []
    length, most = _limits(model)
    if "input_ids" in names:
        found.append(_ids("input_ids", "attention_mask", length, SHORTER, names, generator, most))
        if token := SILENT.get(model.config.model_type):
            found[-1].values[:, 1:17] = attrgetter(token)(model.config)
        if model.config.model_type == "kyutai_speech_to_text":  # a word and a code of each codebook
            found[-1] = _deep(found[-1], model.config.num_codebooks + 1)
    if "decoder_input_ids" in names and model.config.is_encoder_decoder:
        found.append(_ids("decoder_input_ids", "decoder_attention_mask", TARGET, SHORTER - 2, names, generator))
        if model.config.model_type in ("musicgen", "musicgen_melody"):  # a row for each codebook
            rows = found[-1].values.repeat_interleave(model.config.decoder.num_codebooks, 0)
            found[-1] = replace(found[-1], values=rows, mask=None, short=0)
        if model.config.model_type == "dia":  # a word for each channel
            found[-1] = _deep(found[-1], model.config.decoder_config.num_channels)
    if "bbox" in names:
        corners = torch.randint(0, 50, (ROWS, length, 2), generator=generator)
        box = torch.cat([corners, corners + 20], -1)
        box = torch.cat([box, box], -1).float() / 100 if model.config.model_type == "bros" else box
        found.append(Part("bbox", box, 1, "attention_mask", SHORTER))
    for name in ("qformer_input_ids",):
        if name in names:
            found.append(_ids(name, "qformer_attention_mask", 9, 3, names, generator))
    return found


def _deep(part: Part, count: int) -> Part:
    """Words of which there are several at each place."""
    return replace(part, values=part.values[..., None].expand(-1, -1, count))


def _limits(model: PreTrainedModel) -> tuple[int, int]:
    """How long a text may be, and how many words there are."""
    configs = [
        found
        for name in ("text_config", "model_config", "")
        if (found := getattr(model.config, name, None) if name else model.config)
    ]
    lengths = [size for config in configs if isinstance(size := getattr(config, "max_position_embeddings", None), int)]
    sizes = [size for config in configs if isinstance(size := getattr(config, "vocab_size", None), int)]
    return min([LENGTH, *(size for size in lengths if size > 4)]), min(
        [ORDINARY, *(size for size in sizes if size > 4)]
    )


def _ids(
    name: str, mask: str, length: int, short: int, names: set[str], generator: torch.Generator, most: int = ORDINARY
) -> Part:
    ids = torch.randint(3, most, (ROWS, length), generator=generator)
    return Part(name, ids, 1, mask if mask in names or "kwargs" in names else None, short, PAD)


def _side(model: PreTrainedModel) -> int:
    if scales := getattr(model.config, "scaled_images_ratios", None):  # the smallest copy is one patch of the largest
        return int(model.config.patch_size / scales[0])
    if model.config.model_type == "seggpt":  # whose size is that of a picture and its prompt, one above the other
        return SIDE
    for path in ("vision_config", "perceiver_config", "", "backbone_config", "encoder"):
        config = getattr(model.config, path, None) if path else model.config
        for name in ("image_size", "input_size", "max_img_size"):
            size = getattr(config, name, None)
            if isinstance(size, (list, tuple)) and size:
                size = size[0]
            if isinstance(size, int) and size > 0:
                return size
    staged = getattr(model.config, "backbone_config", None) is not None  # which makes one token of 32 × 32 pixels
    return 4 * SIDE if staged else SIDE


def _pictures(model: PreTrainedModel, names: set[str], generator: torch.Generator) -> Iterator[tuple[str, Given]]:
    side = _side(model)
    channels = next(
        (
            config.num_channels  # type: ignore[union-attr]  # None has no such number
            for config in (getattr(model.config, "vision_config", None), model.config)
            if isinstance(getattr(config, "num_channels", None), int)
        ),
        3,
    )
    pixels = torch.randn(ROWS, channels, side, side, generator=generator)
    config = getattr(model.config, "vision_config", None) or model.config
    patch = getattr(config, "patch_size", PATCH)
    patch = patch if isinstance(patch, int) else PATCH
    if "image_grid_thw" in names and "pixel_values" in names:
        temporal = getattr(config, "temporal_patch_size", 1) or 1
        grid = 4
        packed = torch.randn(ROWS * grid**2, 3 * temporal * patch**2, generator=generator)
        sizes = torch.tensor([[1, grid, grid]] * ROWS)
        yield "packed patches", Given((), {"pixel_values": packed, "image_grid_thw": sizes})
        double = torch.randn(ROWS * grid**2, 6 * patch**2, generator=generator)
        yield "packed pairs of patches", Given((), {"pixel_values": double, "image_grid_thw": sizes})
        square = torch.randn(ROWS * grid**2, 3, patch, patch, generator=generator)
        yield "packed square patches", Given((), {"pixel_values": square, "image_grid_thw": sizes})
        yield "row of packed patches", Given((), {"pixel_values": square[None], "image_grid_thw": sizes})
    if "pixel_values" in names:
        if "spatial_shapes" in names:
            count, tall, low = 16, (4, 4), (2, 4)
            patches = torch.randn(ROWS, count, 3 * patch**2, generator=generator)
            yield "patches", Given((Shaped(patches, tall, low),))
        if "pixel_mask" in names and model.main_input_name == "pixel_values":
            yield "image with mask", Given((Masked("pixel_values", pixels, "pixel_mask", patch),))
        if model.config.model_type in modeling_auto.MODEL_FOR_TEXT_RECOGNITION_MAPPING_NAMES:
            for height in (48, 96):
                line = torch.rand(ROWS, 3, height, 10 * height // 3, generator=generator)
                yield "line of text", Given((Part("pixel_values", line),))
        yield "image", Given((Part("pixel_values", pixels),))
        if model.config.model_type == "idefics":
            shown = torch.ones(ROWS, LENGTH, 1, dtype=torch.long)
            yield (
                "image that words see",
                Given((Part("pixel_values", pixels[:, None]),), {"image_attention_mask": shown}),
            )
        if "image_sizes" in names:
            yield (
                "image with sizes",
                Given((Part("pixel_values", pixels),), {"image_sizes": torch.tensor([[side, side]] * ROWS)}),
            )
            tiles = torch.randn(ROWS, 2, channels, side, side, generator=generator)
            yield (
                "tiles with sizes",
                Given((Part("pixel_values", tiles),), {"image_sizes": torch.tensor([[side, side]] * ROWS)}),
            )
        if model.config.model_type in modeling_auto.MODEL_FOR_KEYPOINT_MATCHING_MAPPING_NAMES:
            yield "pair of images", Given((Part("pixel_values", torch.rand(ROWS, 2, 3, 64, 64, generator=generator)),))
        yield "list of images", Given((Part("pixel_values", pixels[:, None]),))
        yield "frames", Given((Part("pixel_values", torch.randn(ROWS, 2, channels, side, side, generator=generator)),))
    if "pixel_values_videos" in names and "pixel_values" not in names:
        yield (
            "video",
            Given((Part("pixel_values_videos", torch.randn(ROWS, 2, channels, side, side, generator=generator)),)),
        )
    if "flattened_patches" in names:
        width = getattr(config, "patch_embed_hidden_size", None) or 3 * patch**2
        flat = torch.randn(ROWS, 16, width + 2, generator=generator)
        flat[..., :2] = torch.stack([torch.arange(16) // 4 + 1, torch.arange(16) % 4 + 1], -1).float()
        yield "flattened patches", Given((Part("flattened_patches", flat, 1, "attention_mask", 4),))


SOUND_MASKS = (
    "input_features_mask",
    "feature_attention_mask",
    "audio_attention_mask",
    "input_values_mask",
    "padding_mask",
)


def _sounds(model: PreTrainedModel, names: set[str], generator: torch.Generator) -> Iterator[tuple[str, Given]]:
    own = "attention_mask" if "input_ids" not in names else None
    mask = next((name for name in (*SOUND_MASKS, own) if name in names), None)
    if "input_values" in names:
        waves = torch.randn(ROWS, _samples(model), generator=generator)
        for always in (False, True) if mask in SOUND_MASKS else (False,):
            known, short = " with mask" * always, waves.shape[1] // 4
            yield f"wave{known}", Given((Part("input_values", waves, 1, mask, short, always=always),))
            lying = Part("input_values", waves[:, None], 2, mask, short, always=always)
            yield f"wave with channel{known}", Given((lying,))
        frames, mels = getattr(model.config, "max_length", 32), getattr(model.config, "num_mel_bins", 16)
        if isinstance(frames, int) and isinstance(mels, int):
            yield "spectrogram", Given((Part("input_values", torch.randn(ROWS, frames, mels, generator=generator)),))
    if "input_features" in names:
        yield from _features(model, mask, generator)


def _samples(model: PreTrainedModel) -> int:
    """Samples of a sound that make about thirty frames, or ten to twenty of a codec."""
    parts = [part for part in vars(model.config).values() if isinstance(part, PreTrainedConfig)]
    for config in (model.config, *parts):
        if ratios := getattr(config, "downsampling_ratios", None):
            return 16 * math.prod(ratios)
    strides = getattr(model.config, "conv_stride", None)
    return (
        32 * math.prod(strides)
        if isinstance(strides, (list, tuple))
        else 32 * (320 if "streaming" in model.config.model_type else 384)
        if "moonshine" in model.config.model_type
        else 3200
    )


def _features(model: PreTrainedModel, mask: str | None, generator: torch.Generator) -> Iterator[tuple[str, Given]]:
    audio = next(
        (
            found
            for name in ("audio_config", "encoder_config", "encoder")
            if (found := getattr(model.config, name, None)) is not None
        ),
        model.config,
    )
    sizes = (
        getattr(audio, name, None)
        for name in (
            "input_size",
            "num_mel_bins",
            "input_feat_per_channel",
            "feature_projection_input_dim",
            "input_dim",
            "n_mels",
            "feature_size",
            "hidden_size",
        )
    )
    mels = next((size for size in sizes if isinstance(size, int)), 16)
    limit = getattr(audio, "max_source_positions", None)
    for frames in dict.fromkeys((2 * limit if isinstance(limit, int) and limit <= 128 else 64, 64, 128, 200, 192)):
        lying = torch.randn(ROWS, mels, frames, generator=generator)
        standing = torch.randn(ROWS, frames, mels, generator=generator)
        for always in (False, True) if mask else (False,):
            known = " with mask" * always
            part = Part("input_features", standing, 1, mask, frames // 4, always=always)
            yield f"{frames} frames{known}", Given((part,))
            part = Part("input_features", lying, 2, mask, frames // 4, always=always)
            yield f"mels by {frames} frames{known}", Given((part,))
        yield f"{frames} frames with channel", Given((Part("input_features", standing[:, None], 2),))
