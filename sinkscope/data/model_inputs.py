"""Model arguments from token ids, images or recordings."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sinkscope.data.measuring_inputs import Inputs
from sinkscope.errors import UnsupportedModelError
from sinkscope.names import FOLDER

OTHERS = {"pixel_values": "--images DIR", "input_features": "--audio DIR", "input_values": "--audio DIR"}
"""Main inputs that are no tokens, and the option that gives them on the command line."""

ANY = "in Python sinkscope.measure takes any inputs"
HINT = f"sinkscope measure and sinkscope check take {{}} ({ANY})"


@dataclass(frozen=True)
class InputReading:
    """Arguments of forward passes, one dict per sample size; and descriptions of the inputs and the first token."""

    parts: tuple[dict[str, Tensor], ...]
    first: str
    description: str

    def one(self, tokens: int) -> dict[str, Tensor]:
        """The first sample; of token ids alone, its first `tokens`, since images take places among them."""
        first = self.parts[0]
        if not {*first} <= {"input_ids", "labels", "decoder_input_ids"}:
            samples = next(len(value) for value in first.values())
            return {name: value[:1] if len(value) == samples else value for name, value in first.items()}
        return {name: value[:1, :tokens].contiguous() for name, value in first.items()}


def reading(model: PreTrainedModel, inputs: Inputs) -> InputReading:
    """Token ids as a model takes them. Raises `UnsupportedModelError` where it cannot be run on tokens alone."""
    check_reads_tokens(model)
    fed_inputs = fed(model, inputs.input_ids)
    try_out(model, fed_inputs)
    if not model.config.is_encoder_decoder:
        return InputReading((fed_inputs,), inputs.first, inputs.description)
    both = "the decoder reads the same tokens after its start token"
    return InputReading(
        (fed_inputs,), f"{inputs.first}; of the decoder its start token", f"{inputs.description}; {both}"
    )


def fed(model: PreTrainedModel, ids: Tensor) -> dict[str, Tensor]:
    """The arguments of a forward pass. An encoder-decoder reads the same tokens on both sides.

    The model itself puts its start token before the decoder's tokens, as in its training, or makes labels into them;
    one that does neither is given start token and shifted tokens.
    """
    if not model.config.is_encoder_decoder:
        return {"input_ids": ids}
    if hasattr(model, "prepare_decoder_input_ids_from_labels"):
        try:
            shifted = model.prepare_decoder_input_ids_from_labels(labels=ids)
        except (AttributeError, TypeError, ValueError) as error:  # of families that shift by the start token
            if getattr(model.config, "decoder_start_token_id", None) is not None:
                raise
            raise UnsupportedModelError(
                f"{type(model).__name__} names no token that its decoder starts with: give decoder_start_token_id in "
                "its config.json (0, its padding, for T5)"
            ) from error
        return {"input_ids": ids, "decoder_input_ids": shifted}
    if "labels" in inspect.signature(model.forward).parameters:
        return {"input_ids": ids, "labels": ids}
    start = torch.full_like(ids[:, :1], start_token(model))
    return {"input_ids": ids, "decoder_input_ids": torch.cat([start, ids[:, :-1]], 1)}


def start_token(model: PreTrainedModel) -> int:
    """The token that a decoder begins with. Raises `UnsupportedModelError` where the model names none."""
    places = (getattr(model, "generation_config", None), model.config, model.config.get_text_config(decoder=True))
    for place in places:
        for name in ("decoder_start_token_id", "bos_token_id"):
            if isinstance(token := getattr(place, name, None), int):
                return token
    raise UnsupportedModelError(f"{type(model).__name__} names no token that its decoder starts with")


def check_reads_tokens(model: PreTrainedModel) -> None:
    """Raises `UnsupportedModelError` for a model whose main input is something else."""
    name = model.main_input_name
    if name != "input_ids":
        how = HINT.format(OTHERS[name]) if name in OTHERS else ANY
        raise UnsupportedModelError(f"the model reads {name}, not tokens: {how}")


def corpus_of(config: Any) -> str:
    """What a model reads where nothing is said: code if it was trained on that here, prose otherwise."""
    folder = FOLDER / getattr(config, "name_or_path", "")  # a name, or a folder, which replaces FOLDER
    shipped = folder.parent == FOLDER and folder.is_dir()
    return "python" if shipped or config.model_type == "sinkscope_lab" else "prose"


def vocabulary_of(model: PreTrainedModel) -> int:
    """Random ids for a model. Raises `UnsupportedModelError` as `check_reads_tokens` does."""
    check_reads_tokens(model)
    return int(model.config.get_text_config().vocab_size)


def try_out(model: PreTrainedModel, inputs: dict[str, Any]) -> None:
    """Two tokens through a model that may want more, so that what it lacks is said before anything is measured.

    Raises `UnsupportedModelError` where the model cannot be run on tokens alone.
    """
    wanted = [name for name in OTHERS if name in inspect.signature(model.forward).parameters]
    if not wanted:
        return
    device = next(weight.device for weight in model.parameters() if not weight.is_meta)
    try:
        with torch.no_grad():
            model(**{name: value[:1, :2].contiguous().to(device) for name, value in inputs.items()})
    except (AttributeError, TypeError, ValueError) as error:
        raise UnsupportedModelError(
            f"{type(model).__name__} reads {wanted[0]} besides its tokens: {HINT.format(OTHERS[wanted[0]])}"
        ) from error
