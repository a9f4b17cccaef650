"""Initial weights from a trained model (Gu et al. 2025, appendix E)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from sinkscope.attention import Causal
from sinkscope.data import load_fast_tokenizer
from sinkscope.errors import InputError, unknown
from sinkscope.files import sha256
from sinkscope.model import SHIPPED, LabConfig, LabForCausalLM, load
from sinkscope.model.hub import resolve
from sinkscope.training.recipe import FIELDS_OF_MODEL, Recipe

FREE = {"attention", "max_position_embeddings", "restart_positions", "bos_token_id", "eos_token_id", "pad_token_id"}


def lab_model(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> LabForCausalLM:
    """The recipe's model with random weights, or with those of `start_from`.

    Raises `InputError` if these do not fit.
    """
    model = LabForCausalLM(recipe.lab_config(tokenizer))
    if recipe.start_from is not None:
        weights = load(recipe.start_from).state_dict()
        try:
            model.load_state_dict(weights)
        except RuntimeError as error:
            reason = " ".join(str(error).split()).partition(":")[2].strip()
            raise InputError(f"start_from '{recipe.start_from}': its weights do not fit: {reason}") from error
    return model


def start_fingerprint(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """The part of a run's fingerprint for the weights that it starts from: their digest, not their path.

    Raises `InputError` if there are no weights, if sizes, choices or the attention operation (except its mask) differ
    from the recipe's, and if the tokenizer is not that of the data.
    """
    if recipe.start_from is None:
        return {}
    folder = _folder(recipe.start_from)
    _check_config(recipe, LabConfig.from_pretrained(folder), tokenizer)
    _check_tokenizer(recipe, load_fast_tokenizer(str(folder)), tokenizer)
    digests = [sha256(path) for path in sorted(folder.glob("*.safetensors"))]
    if not digests:
        raise InputError(f"start_from '{recipe.start_from}' holds no weights (model.safetensors)")
    return {"start": {"weights_sha256": hashlib.sha256("".join(digests).encode()).hexdigest()}}


def _folder(name: str) -> Path:
    if name not in SHIPPED and not Path(name).exists():
        error = unknown("start_from", name, SHIPPED)
        raise InputError(f"{error}; or the folder of a run or of a lab model")
    folder = Path(resolve(name))
    try:
        kind = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type")
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(f"start_from '{name}': cannot read {folder / 'config.json'}: {error}") from error
    if kind != LabConfig.model_type:
        raise InputError(f"start_from '{name}' is a model of type '{kind}', expected a lab model")
    return folder


def _check_config(recipe: Recipe, start: LabConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    config = recipe.lab_config(tokenizer)
    for field in FIELDS_OF_MODEL:
        loaded, asked = getattr(start, field), getattr(config, field)
        if field not in FREE and loaded != asked:
            raise InputError(
                f"start_from '{recipe.start_from}': its model.{field} is {loaded!r}, the recipe's is {asked!r}"
            )
    # Apart from masks, which data and loss of the new recipe may change.
    if [replace(spec, mask=Causal()) for spec in start.specs] != [
        replace(spec, mask=Causal()) for spec in config.specs
    ]:
        raise InputError(
            f"start_from '{recipe.start_from}': its attention is '{start.attention_name}', the recipe's is "
            f"'{config.attention_name}'"
        )


def _check_tokenizer(recipe: Recipe, start: PreTrainedTokenizerFast, data: PreTrainedTokenizerFast) -> None:
    if _encoding(start) != _encoding(data):
        raise InputError(
            f"start_from '{recipe.start_from}': its tokenizer differs from data.tokenizer = "
            f"'{recipe.data.tokenizer}'; set data.tokenizer to '{recipe.start_from}'"
        )


def _encoding(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """What decides how text is encoded, without the special tokens added around it."""
    state: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    return {name: state[name] for name in ("model", "normalizer", "pre_tokenizer", "added_tokens")}
