"""What only one family, or one task, is given beside words, pictures and sounds."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel

from tests.families.sweep.parts import LENGTH, ROWS
from tests.families.sweep.shrink import SIDE


def own(model: PreTrainedModel, names: set[str], generator: torch.Generator) -> dict[str, Any]:
    """Further inputs by the names of a forward pass: an entry per row, however rows are padded."""
    found = _series(model, names, generator) if "past_values" in names else {}
    config = model.config

    def numbers(*sizes: int) -> torch.Tensor:
        return torch.randn(ROWS, *sizes, generator=generator)

    if "visual_feats" in names:
        found["visual_feats"] = numbers(5, config.visual_feat_dim)
        found["visual_pos"] = torch.rand(ROWS, 5, config.visual_pos_dim, generator=generator)
    if config.model_type in ("mimi_decoder", "pocket_tts_audio_tokenizer_decoder"):
        found["latents"] = numbers(config.hidden_size, 12)
    if "task_inputs" in names:
        found["task_inputs"] = torch.randint(3, 90, (ROWS, config.task_seq_len), generator=generator)
    if "states" in names and "actions" in names:
        found |= {"states": numbers(6, config.state_dim), "actions": numbers(6, config.act_dim)}
        found["rewards"] = found["returns_to_go"] = numbers(6, 1)
        found["timesteps"] = torch.arange(6).expand(ROWS, -1)
    if "image_embeds_position_mask" in names and config.model_type == "kosmos-2":
        found["image_embeds_position_mask"] = (torch.arange(LENGTH) < 6).long().expand(ROWS, -1)
    if config.model_type == "voxtral_realtime_text":
        found["t_cond"] = numbers(1, config.hidden_size)  # how late the text is
    if "prompt_masks" in names:
        found |= {name: numbers(3, SIDE, SIDE) for name in ("prompt_pixel_values", "prompt_masks")}
    if config.model_type == "pi0":  # a robot's: one camera, and actions that are noise so far
        found |= {"state": numbers(config.max_state_dim), "timestep": torch.rand(ROWS, generator=generator)}
        found["noise"] = numbers(config.chunk_size, config.max_action_dim)
        found["pixel_attention_mask"] = torch.ones(ROWS, 1, dtype=torch.bool)
    if {"input_values", "input_features"} <= names and hasattr(
        config, "semantic_model_config"
    ):  # a codec hears a wave, and reads its spectrogram
        found["input_features"] = numbers(16, config.semantic_model_config.feature_projection_input_dim)
    if "sample" in names:
        found["sample"] = False  # of a sound's distribution its mean
    if "marks" in names:
        found["marks"] = torch.tensor([[9, 17]] * ROWS)
        found["num_options"], found["question_type_ids"] = torch.tensor([[2, 3]] * ROWS), torch.tensor([[0, 2]] * ROWS)
    if "context_hidden_states" in names:
        found["noise_embeds"] = numbers(config.block_size, config.hidden_size)
        found["context_hidden_states"] = numbers(LENGTH, len(config.target_layer_ids) * config.hidden_size)
        found["attention_mask"] = torch.ones(ROWS, LENGTH + config.block_size, dtype=torch.long)
    if "classes_structure" in names:
        found |= _classes(generator)
    return found


def _series(model: PreTrainedModel, names: set[str], generator: torch.Generator) -> dict[str, Any]:
    """Numbers in time, with what is known of each time, and of the future where a model is told of it."""
    found: dict[str, Any] = {}
    config = model.config
    context = getattr(config, "context_length", 32) or 32
    lags = getattr(config, "lags_sequence", None)
    length = context + max(lags) if lags else context
    channels = getattr(config, "num_input_channels", None)
    shape = (ROWS, length) if lags else (ROWS, length, channels) if channels else (ROWS, length)
    found["past_values"] = torch.randn(shape, generator=generator)
    if "past_time_features" in names:
        features = getattr(config, "num_time_features", 0)
        found["past_time_features"] = torch.randn(ROWS, length, features, generator=generator)
        found["past_observed_mask"] = torch.ones(ROWS, length)
        later = config.prediction_length
        found["future_values"] = torch.randn(ROWS, later, generator=generator)
        found["future_time_features"] = torch.randn(ROWS, later, features, generator=generator)
    if "past_values_padding" in names:
        found["past_values_padding"] = torch.zeros(ROWS, length)
    if "freq" in names:
        found["freq"] = torch.zeros(ROWS, 1, dtype=torch.long)
    return found


def _classes(generator: torch.Generator) -> dict[str, Any]:
    """A task for each picture, and three classes."""
    found: dict[str, Any] = {"classes_structure": torch.tensor([3] * ROWS)}
    for name, rows in (("classes", 3 * ROWS), ("tasks", ROWS)):
        found[f"{name}_input_ids"] = torch.randint(3, 90, (rows, 6), generator=generator)
        found[f"{name}_attention_mask"] = torch.ones(rows, 6, dtype=torch.long)
    return found
