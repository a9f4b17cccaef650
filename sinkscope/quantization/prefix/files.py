"""A prefix on disk: JSON that other engines can act on, and keys and values in safetensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.files import writing

JSON, TENSORS = "prefix.json", "prefix.safetensors"
VERSION = 1
NEEDED = ("version", "prefix_token_ids", "prefix_tokens", "bos_token_id", "found", "model")


@dataclass(frozen=True, eq=False)
class StoredPrefix:
    """The contents of a folder."""

    described: Mapping[str, Any]
    logits: Tensor
    layers: tuple[tuple[Tensor, Tensor], ...]

    def cache(self, model: PreTrainedModel, where: torch.device) -> Cache:
        """Keys and values in a cache of the model's own kind."""
        cache = DynamicCache(config=model.config)
        for number, (key, value) in enumerate(self.layers):
            cache.update(key.to(where), value.to(where), number)
        return cache


def write_prefix(folder: Path, described: Mapping[str, Any], logits: Tensor, cache: Cache) -> None:
    """Both files, whole or not at all."""
    tensors = {"logits": logits.contiguous().cpu()}
    for number, (key, value) in enumerate(whole(cache, len(logits))):
        tensors |= {f"layers.{number}.key": key.contiguous().cpu(), f"layers.{number}.value": value.contiguous().cpu()}
    tensors = {name: tensor.detach().clone() for name, tensor in tensors.items()}  # some caches return views
    with writing(folder) as draft:
        draft.mkdir()
        save_file(tensors, draft / TENSORS)
        text = json.dumps({"version": VERSION, **described}, indent=2, allow_nan=False)
        (draft / JSON).write_text(text + "\n", encoding="utf-8")


def whole(cache: Cache, length: int) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of all `length` tokens. Raises `UnsupportedModelError` as `keys_and_values`, and for shorter
    windows.
    """
    layers = keys_and_values(cache)
    for number, (key, _) in enumerate(layers):
        if key.shape[2] != length:
            raise UnsupportedModelError(
                f"layer {number} keeps the last {key.shape[2]} of the prefix's {length} tokens, its window: only a "
                "shorter prefix can be saved"
            )
    return layers


def keys_and_values(cache: Cache) -> list[tuple[Tensor, Tensor]]:
    """(1, kv_heads, token, dim) of each layer. Raises `UnsupportedModelError` for a layer that holds anything else."""
    layers = []
    for number, layer in enumerate(cache.layers):
        key, value = getattr(layer, "keys", None), getattr(layer, "values", None)
        states = [name for name in ("conv_states", "recurrent_states") if getattr(layer, name, None) is not None]
        if not isinstance(key, Tensor) or not isinstance(value, Tensor) or states:
            raise UnsupportedModelError(
                f"layer {number} of this cache ({type(layer).__name__}) holds a state other than keys and values: such "
                "a prefix can be used, but not saved"
            )
        layers.append((key, value))
    return layers


def read_prefix(folder: Path) -> StoredPrefix:
    """What `write_prefix` wrote. Raises `InputError` for anything else."""
    try:
        described = json.loads((folder / JSON).read_text(encoding="utf-8"))
        tensors = load_file(folder / TENSORS)
    except (OSError, ValueError, SafetensorError) as error:
        raise InputError(f"no prefix in {folder}: {str(error).splitlines()[0]}") from error
    lacking = [name for name in NEEDED if not isinstance(described, dict) or name not in described]
    if lacking:
        raise InputError(f"no prefix in {folder}: {JSON} lacks '{lacking[0]}'")
    if described["version"] != VERSION:
        raise InputError(f"the prefix in {folder} is of version {described['version']}, this reads {VERSION}")
    count = sum(name.endswith(".key") for name in tensors)
    wanted = ["logits", *(f"layers.{n}.{side}" for n in range(count) for side in ("key", "value"))]
    if sorted(wanted) != sorted(tensors) or not count:
        raise InputError(f"no prefix in {folder}: {TENSORS} does not hold logits, and keys and values of every layer")
    length = len(described["prefix_token_ids"])
    layers = tuple((tensors[f"layers.{n}.key"], tensors[f"layers.{n}.value"]) for n in range(count))
    if any(key.ndim != 4 or key.shape[:2] != value.shape[:2] or len(key) != 1 for key, value in layers):
        raise InputError(f"no prefix in {folder}: {TENSORS} holds tensors of other shapes")
    if len(tensors["logits"]) != length or any(key.shape[2] != length for key, _ in layers):
        raise InputError(f"no prefix in {folder}: {JSON} names {length} tokens, {TENSORS} holds others")
    return StoredPrefix(described, tensors["logits"], layers)
