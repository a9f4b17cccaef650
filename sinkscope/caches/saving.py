"""Caches as files, to continue after a prompt later. Tensors and JSON in safetensors, without pickle."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sinkscope.errors import InputError
from sinkscope.hooks import device_of, family

HEADER = "sinkscope_cache"
FORMAT = 1


def write_state(path: str | Path, model: nn.Module, settings: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Write a cache's settings and state: tensors and plain values, in lists and dictionaries."""
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    about = {"format": FORMAT, "model": fingerprint(model), "settings": settings, "state": _packed(state, tensors)}
    save_file(tensors, str(path), {HEADER: json.dumps(about)})


def read_state(path: str | Path, model: nn.Module, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The state in a file, on the model's device.

    Raises `InputError` for a file of another kind, and for a cache with other settings or of another model.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), "pt") as file:
            about = json.loads((file.metadata() or {}).get(HEADER, "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} cannot be read as a cache: {error}") from error
    if about is None or about.get("format") != FORMAT:
        raise InputError(f"{path} is not a cache saved by this version of sinkscope")
    saved, expected = about["settings"], json.loads(json.dumps(settings))
    if name := next((name for name in expected | saved if expected.get(name) != saved.get(name)), None):
        raise InputError(
            f"{path} holds a cache with {name} = {saved.get(name)!r}, but this one has {expected.get(name)!r}: make it "
            "with the same settings"
        )
    if about["model"] != fingerprint(model):
        raise InputError(f"{path} was written by another model, or by other weights of family '{family(model)}'")
    device = device_of(model)
    tensors = {name: tensor.to(device) for name, tensor in tensors.items()}
    state: dict[str, Any] = _unpacked(about["state"], tensors, device)
    return state


def fingerprint(model: nn.Module) -> str:
    """A hash of the names and shapes of all parameters and of the first 16 numbers of each."""
    digest = hashlib.sha256()
    for name, weight in model.named_parameters():
        digest.update(f"{name} {tuple(weight.shape)}".encode())
        digest.update(weight.detach().flatten()[:16].float().cpu().numpy().tobytes())
    return digest.hexdigest()


def _packed(value: Any, tensors: dict[str, Tensor]) -> Any:
    """As JSON, with tensors by number. Any other kind of value is a fault of this package."""
    if isinstance(value, Tensor):
        tensors[name := str(len(tensors))] = value.detach().clone().contiguous()
        return {"tensor": name}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, list | tuple):
        return {"list": [_packed(item, tensors) for item in value]}
    if isinstance(value, Mapping):
        return {"pairs": [[key, _packed(item, tensors)] for key, item in value.items()]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a cache holds a {type(value).__name__}, which cannot be written")


def _unpacked(value: Any, tensors: Mapping[str, Tensor], device: torch.device) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "tensor":
        return tensors[inner]
    if kind == "dtype":
        return getattr(torch, inner)
    if kind == "device":
        return device
    if kind == "list":
        return [_unpacked(item, tensors, device) for item in inner]
    return {key: _unpacked(item, tensors, device) for key, item in inner}
