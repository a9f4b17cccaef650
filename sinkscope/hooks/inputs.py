"""What a model is given: token ids or a dict of tensors, checked, placed, and cut into batches that fit into memory."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from sinkscope.errors import InputError
from sinkscope.hooks.modules import text_config

IDS = ("input_ids", "decoder_input_ids")


def checked_inputs(model: nn.Module, inputs: Any, batch_size: int = 1) -> tuple[dict[str, Any], int]:
    """Model inputs by name from token ids (N, T) or a dict, and the number N of samples.

    Raises `InputError` for empty inputs, ids outside the vocabulary, a padding mask of another length than its ids,
    more tokens than the model has positions, a batch size below 1, and NaN in the model's weights.
    """
    given = _as_dict(inputs)
    samples = samples_of(given)
    check_weights(model)
    check_ids(model, given)
    check_padding(given)
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


def batches(model: nn.Module, given: Mapping[str, Any], samples: int, batch_size: int) -> Iterator[dict[str, Any]]:
    """The inputs, `batch_size` samples at a time, on the model's device."""
    for start in range(0, samples, batch_size):
        yield part(given, slice(start, min(start + batch_size, samples)), samples, device_of(model))


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


def in_batches(run: Callable[[slice], None], samples: int, batch_size: int, described: str = "") -> None:
    """Call `run` on consecutive rows, `batch_size` at a time; where they do not fit into memory, on half as many.

    A halved size is kept for the rest, and said in a `UserWarning`. Raises `InputError` where one sample does not fit;
    `described` then says what it is. `run` must count nothing for a call that ends in an error.
    """
    start, size = 0, min(batch_size, samples)
    while start < samples:
        try:
            run(slice(start, min(start + size, samples)))
        except RuntimeError as error:
            if not _is_out_of_memory(error):
                raise
            error.__traceback__ = None  # it holds what the failed call had allocated
        else:
            start += size
            continue
        _free()
        size = _halved(min(size, samples - start), described)


def check_weights(model: nn.Module) -> None:
    """Raises `InputError` naming the first parameter that holds a NaN or an infinity."""
    for name, parameter in model.named_parameters():
        if parameter.is_meta or not parameter.is_floating_point():
            continue
        weight = parameter.detach()
        # The sum is finite unless an entry is not (or it overflows), and needs no copy of the weights.
        if not bool(torch.isfinite(weight.sum())) and not bool(torch.isfinite(weight).all()):
            raise InputError(f"NaN or infinity in the weights, first in '{name}'")


def check_ids(model: nn.Module, given: Mapping[str, Any]) -> None:
    """Raises `InputError` for the first token id outside the vocabulary."""
    for name in IDS:
        ids = given.get(name)
        if not isinstance(ids, Tensor):
            continue
        if ids.is_floating_point() or ids.dtype == torch.bool or ids.ndim != 2:
            raise InputError(f"{name} {tuple(ids.shape)} {ids.dtype}: token ids are whole numbers (samples, tokens)")
        size = _vocabulary(model)
        outside = (ids < 0) if size is None else (ids < 0) | (ids >= size)
        if bool(outside.any()):
            sample, position = outside.nonzero()[0].tolist()
            raise InputError(
                f"token id {int(ids[sample, position])} (sample {sample}, position {position}) is outside the "
                f"vocabulary{'' if size is None else f' of {size} tokens'}"
            )


def check_padding(given: Mapping[str, Any]) -> None:
    """Raises `InputError` where a padding mask (N, T) is shorter or longer than the token ids it belongs to."""
    for name in IDS:
        mask_name = name.replace("input_ids", "attention_mask")
        ids, mask = given.get(name), given.get(mask_name)
        if isinstance(ids, Tensor) and isinstance(mask, Tensor) and mask.ndim == 2 and mask.shape[1] != ids.shape[1]:
            raise InputError(
                f"{mask_name} {tuple(mask.shape)} does not fit {name} {tuple(ids.shape)}: give one entry per token"
            )


def check_positions(model: nn.Module, given: Mapping[str, Any]) -> None:
    """Raises `InputError` where a row has more tokens than the model has positions."""
    text = text_config(model)
    limit = getattr(text, "max_position_embeddings", None)
    for name in (*IDS, "inputs_embeds"):
        value = given.get(name)
        if isinstance(limit, int) and isinstance(value, Tensor) and value.shape[1] > limit > 0:
            raise InputError(f"{value.shape[1]} tokens, but the model has positions for {limit}: use at most {limit}")


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


def _vocabulary(model: nn.Module) -> int | None:
    """Rows of the token embedding; None for a model that does not say which one that is."""
    if not isinstance(model, PreTrainedModel):
        return None
    try:
        embedding = model.get_input_embeddings()
    except NotImplementedError:
        return None
    return embedding.num_embeddings if isinstance(embedding, nn.Embedding) else None


def _halved(size: int, described: str) -> int:
    if size == 1:
        raise InputError(f"out of memory with a single sample {described}".rstrip() + ": use fewer tokens")
    warnings.warn(f"out of memory with {size} samples at once: going on with {size // 2}", UserWarning, stacklevel=4)
    return size // 2


def _is_out_of_memory(error: RuntimeError) -> bool:
    """Also the CPU allocator's refusal, which has no class of its own."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
