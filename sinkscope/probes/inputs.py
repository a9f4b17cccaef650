"""What a model is given: token ids or a dict of tensors, checked, and cut into batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sinkscope.errors import InputError
from sinkscope.probes.checks import check_ids, check_positions, check_weights


def checked_inputs(model: nn.Module, inputs: Any, batch_size: int = 1) -> tuple[dict[str, Any], int]:
    """Model inputs by name from token ids (N, T) or a dict, and the number N of samples.

    Raises `InputError` for empty inputs, ids outside the vocabulary, more tokens than the model has positions, a batch
    size below 1, and NaN in the model's weights.
    """
    given = _as_dict(inputs)
    samples = samples_of(given)
    check_weights(model)
    check_ids(model, given)
    check_positions(model, given)
    if batch_size < 1:
        raise InputError(f"batch_size = {batch_size}: at least 1")
    return given, samples


def samples_of(given: Mapping[str, Any]) -> int:
    """The number of samples, rows of the main input. Raises `InputError` where there are none."""
    tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
    if not tensors or any(value.numel() == 0 for value in tensors.values()):
        raise InputError("inputs are empty: nothing to measure")
    main = next((name for name in ("input_ids", "inputs_embeds") if name in tensors), next(iter(tensors)))
    return len(tensors[main])


def device_of(model: nn.Module) -> torch.device:
    """Where a model takes its inputs: the device of its first weight that is in memory."""
    return next((weight.device for weight in model.parameters() if not weight.is_meta), torch.device("cpu"))


def part(given: Mapping[str, Any], rows: slice, samples: int, device: torch.device) -> dict[str, Any]:
    """The batch `rows`: tensors with a row per sample are cut, everything else is handed on."""
    part: dict[str, Any] = {}
    for name, value in given.items():
        if isinstance(value, Tensor):
            if value.ndim and len(value) == samples:
                value = value[rows]
            elif value.ndim and len(value) != 1 and rows.stop - rows.start < samples:
                raise InputError(
                    f"inputs: '{name}' has {len(value)} rows for {samples} samples; use batch_size={samples}"
                )
            value = value.to(device)
        part[name] = value
    return part


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode, and afterwards every module in the mode in which it was."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def _as_dict(inputs: Any) -> dict[str, Any]:
    if isinstance(inputs, Mapping):
        return dict(inputs)
    try:
        ids = torch.as_tensor(inputs)
    except (TypeError, ValueError) as error:
        raise InputError(
            "inputs: expected token ids (N, T) in rows of one length (pad shorter ones and give an attention_mask), or "
            "a dict of model inputs"
        ) from error
    if ids.ndim != 2:
        raise InputError(f"inputs {tuple(ids.shape)}: token ids must be (samples, tokens)")
    return {"input_ids": ids}
