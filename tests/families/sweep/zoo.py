"""Which model types the installed transformers has, and the class that stands for each."""

from __future__ import annotations

import functools
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import transformers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES, model_type_to_module_name

HEADS = (
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "MODEL_FOR_CTC_MAPPING_NAMES",
    "MODEL_FOR_RETRIEVAL_MAPPING_NAMES",
    "MODEL_MAPPING_NAMES",
    "MODEL_FOR_PRETRAINING_MAPPING_NAMES",
    "MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING_NAMES",
    "MODEL_FOR_TEXT_TO_SPECTROGRAM_MAPPING_NAMES",
    "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES",
    "MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES",
    "MODEL_FOR_ZERO_SHOT_OBJECT_DETECTION_MAPPING_NAMES",
    "MODEL_FOR_UNIVERSAL_SEGMENTATION_MAPPING_NAMES",
    "MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES",
    "MODEL_FOR_DEPTH_ESTIMATION_MAPPING_NAMES",
    "MODEL_FOR_KEYPOINT_MATCHING_MAPPING_NAMES",
    "MODEL_FOR_KEYPOINT_DETECTION_MAPPING_NAMES",
    "MODEL_FOR_POSE_ESTIMATION_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_TO_IMAGE_MAPPING_NAMES",
    "MODEL_FOR_TEXT_RECOGNITION_MAPPING_NAMES",
    "MODEL_FOR_TABLE_RECOGNITION_MAPPING_NAMES",
    "MODEL_FOR_TIME_SERIES_PREDICTION_MAPPING_NAMES",
    "MODEL_FOR_DECISION_MAPPING_NAMES",
    "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
    "MODEL_FOR_MASK_GENERATION_MAPPING_NAMES",
)

CLASSES = {  # heads of their parts alone stand before them
    "musicgen": "MusicgenForConditionalGeneration",
    "musicgen_melody": "MusicgenMelodyForConditionalGeneration",
    "bark": "BarkSemanticModel",  # the first of three alike, which the whole calls one after the other
    **modeling_auto.MODEL_FOR_TEXT_RECOGNITION_MAPPING_NAMES,  # the models themselves stop before their attention
}
CONFIGURATIONS = {"bark": "BarkSemanticConfig"}
INSTEAD = {  # of what cannot be run as a whole, the part that reads and writes
    "qwen2_5_omni": "qwen2_5_omni_thinker",
    "qwen3_omni_moe": "qwen3_omni_moe_thinker",
}
ATTENTION = re.compile(r"ALL_ATTENTION_FUNCTIONS|scaled_dot_product_attention|MultiheadAttention|class \w*Attention\(")


def model_types() -> dict[str, list[str]]:
    """By folder of `transformers.models`: its model types that have a model."""
    found: dict[str, list[str]] = {}
    for kind in CONFIG_MAPPING_NAMES:
        if class_name(kind) is not None:
            found.setdefault(model_type_to_module_name(kind), []).append(kind)
    return found


@functools.cache
def class_name(kind: str) -> str | None:
    """The class for a model type that is used in practice: with a head for language where there is one."""
    if kind in CLASSES:
        return CLASSES[kind]
    for head in HEADS:
        found = getattr(modeling_auto, head, {}).get(kind)
        if found:
            return found if isinstance(found, str) else found[0]
    return None


def model_class(kind: str) -> type[Any]:
    """The class itself, also where transformers does not export it."""
    name = str(class_name(kind))
    code = config_class(kind).__module__.replace("configuration_", "modeling_")
    return getattr(transformers, name, None) or getattr(importlib.import_module(code), name)


def config_class(kind: str) -> type[Any]:
    return getattr(transformers, CONFIGURATIONS.get(kind, CONFIG_MAPPING_NAMES[kind]))


def known() -> frozenset[str]:
    """All model types that the installed transformers has."""
    return frozenset(CONFIG_MAPPING_NAMES)


def cases() -> Iterator[str]:
    """Every model type that is no part of another of its folder, and every one that writes text."""
    for kinds in model_types().values():
        parts = {part for kind in kinds for part in _parts(config_class(kind))}
        for kind in kinds:
            whole = CONFIG_MAPPING_NAMES[kind] not in parts
            if kind in INSTEAD:
                yield INSTEAD[kind]
            elif attends(kind) and (whole or kind in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
                yield kind


def attends(kind: str) -> bool:
    """Whether the code of a model type has attention in it, or that of a part."""
    config = config_class(kind)
    folder = Path(str(sys.modules[config.__module__].__file__)).parent
    code = "".join(path.read_text() for path in folder.glob("modeling_*.py"))
    return bool(ATTENTION.search(code)) or any(map(_may_attend, _defaults(config)))


def _may_attend(part: str | None) -> bool:
    """Whether a part has attention in it, by its model type; any model may stand where there is none by default."""
    return part is None or (part in CONFIG_MAPPING_NAMES and attends(part))


def _defaults(config: type[Any]) -> Iterator[str | None]:
    """The model types of the parts that a configuration has where nothing is said."""
    for part in getattr(config, "sub_configs_defaults", {}).values():
        yield part.model_type or getattr(part.config_class, "model_type", None) or None


def _parts(config: type[Any]) -> Iterator[str]:
    """Names of the configuration classes that stand inside of one."""
    for part in getattr(config, "sub_configs", {}).values():
        if part is not None and part is not config:
            yield part.__name__
            yield from _parts(part)
