"""Model inputs: token ids or a dict of tensors, checked, placed, and cut into batches that fit into memory."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from sinkscope.errors import InputError, check_whole
from sinkscope.hooks.modules import counts_columns, position_limit

IDS = ("input_ids", "decoder_input_ids")
OTHER_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.uint16, torch.uint32, torch.uint64)


def checked_inputs(model: nn.Module, inputs: Any, batch_size: int = 1) -> tuple[dict[str, Any], int]:
    """Model inputs by name from token ids (N, T) or a dict, and the number N of samples.

    Where rows begin with padding and the model would count it, `position_ids` are added that count real tokens, as
    `generate` does: a row is then read as it is without padding.

    Raises `InputError` for empty inputs, ids outside the vocabulary, a padding mask of another shape than its ids,
    more tokens than the model has positions, a batch size below 1, and NaN in the model's weights.
    """
    named = _as_dict(inputs)
    for name in IDS:
        if isinstance(ids := named.get(name), Tensor) and ids.dtype in OTHER_WHOLE:
            named[name] = ids.long()  # embeddings take int32 and int64 alone
    samples = samples_of(named)
    check_weights(model)
    check_ids(model, named)
    check_padding(named, samples)
    check_shapes(model, named)
    check_positions(model, named)
    check_whole("batch_size", batch_size)
    return named | _real_positions(model, named), samples


def samples_of(inputs: Mapping[str, Any]) -> int:
    """The number of samples, rows of the main input. Raises `InputError` if there are none."""
    tensors = {name: value for name, value in inputs.items() if isinstance(value, Tensor)}
    if not tensors or any(value.numel() == 0 for value in tensors.values()):
        raise InputError("inputs are empty: nothing to measure")
    main = next((name for name in ("input_ids", "inputs_embeds") if name in tensors), next(iter(tensors)))
    return len(tensors[main])


def device_of(model: nn.Module) -> torch.device:
    """The device of a model's inputs: that of its first weight in memory."""
    return next((weight.device for weight in model.parameters() if not weight.is_meta), torch.device("cpu"))


def part(inputs: Mapping[str, Any], rows: slice, samples: int, device: torch.device | None) -> dict[str, Any]:
    """The batch `rows`: tensors with one row per sample are sliced, everything else is passed on.

    A `device` of None leaves tensors where they are. Raises `InputError` for tensors whose rows are no samples, unless
    the batch has all samples.
    """
    batch: dict[str, Any] = {}
    for name, value in inputs.items():
        if isinstance(value, Tensor) and value.ndim:
            # Rotations over several axes have position_ids (axis, sample, token).
            by_axis = name == "position_ids" and value.ndim == 3
            count = value.shape[int(by_axis)]
            if count == samples:
                value = value[:, rows] if by_axis else value[rows]
            elif count != 1 and rows.stop - rows.start < samples:
                raise InputError(
                    f"inputs: '{name}' has {count} rows for {samples} samples, which cannot be told apart: use all "
                    f"samples at once, with batch_size={samples}"
                )
        if isinstance(value, Tensor) and device is not None:
            value = value.to(device)
        batch[name] = value
    return batch


def batches(model: nn.Module, inputs: Mapping[str, Any], samples: int, batch_size: int) -> Iterator[dict[str, Any]]:
    """The inputs, `batch_size` samples at a time, on the model's device."""
    for start in range(0, samples, batch_size):
        yield part(inputs, slice(start, min(start + batch_size, samples)), samples, device_of(model))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode inside the block; afterwards each module's previous mode."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            # Not by `train()`, which would give all its submodules the same mode.
            module.training = training


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """No weight requires a gradient inside the block, so that none takes memory."""
    trainable = [weight for weight in model.parameters() if weight.requires_grad]
    for weight in trainable:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in trainable:
            weight.requires_grad_(True)


class FittingBatches:
    """Consecutive rows, `size` at a time; half as many from where a batch did not fit into memory.

        batches = FittingBatches(samples, batch_size)
        for rows in batches:
            with batches.halved_if_out_of_memory():
                model(**part(inputs, rows, samples, device))

    A halving is announced by a `UserWarning`. Raises `InputError` if a single sample does not fit, with `described` in
    the message. A batch that failed is repeated, so the block must count nothing before it succeeds.
    """

    def __init__(self, samples: int, size: int, described: str = "") -> None:
        self._samples, self._size, self._described = samples, min(size, samples), described
        self._start, self._failed = 0, False

    def __iter__(self) -> Iterator[slice]:
        while self._start < self._samples:
            yield slice(self._start, min(self._start + self._size, self._samples))
            if not self._failed:
                self._start += self._size
                continue
            self._failed = False
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            size = min(self._size, self._samples - self._start)
            if size == 1:
                described = f"out of memory with a single sample {self._described}".rstrip()
                raise InputError(f"{described}: use fewer tokens")
            self._size = size // 2
            message = f"out of memory with {size} samples at once: going on with {self._size}"
            warnings.warn(message, UserWarning, stacklevel=3)

    @contextmanager
    def halved_if_out_of_memory(self) -> Iterator[None]:
        """Run one batch; an out-of-memory error ends the block, and the rows are repeated in halves."""
        try:
            yield
        except RuntimeError as error:
            if not _is_out_of_memory(error):
                raise
            error.__traceback__ = None  # it holds what the failed pass had allocated
            self._failed = True


def in_batches(run: Callable[[slice], None], samples: int, batch_size: int, described: str = "") -> None:
    """Call `run` on the rows of each of `FittingBatches`, which takes its place. For one release."""
    warnings.warn("hooks.in_batches is hooks.FittingBatches now", DeprecationWarning, stacklevel=2)
    batches = FittingBatches(samples, batch_size, described)
    for rows in batches:
        with batches.halved_if_out_of_memory():
            run(rows)


def check_weights(model: nn.Module) -> None:
    """Raises `InputError` naming the first parameter that holds a NaN or an infinity."""
    for name, parameter in model.named_parameters():
        if parameter.is_meta or not parameter.is_floating_point():
            continue
        weight = parameter.detach()
        # The sum is finite unless an entry is not (or it overflows), and needs no copy of the weights.
        if not bool(torch.isfinite(weight.sum())) and not bool(torch.isfinite(weight).all()):
            raise InputError(f"NaN or infinity in the weights, first in '{name}'")


def check_ids(model: nn.Module, inputs: Mapping[str, Any]) -> None:
    """Raises `InputError` for the first token id outside the vocabulary."""
    for name in IDS:
        ids = inputs.get(name)
        if not isinstance(ids, Tensor):
            continue
        if ids.is_floating_point() or ids.dtype == torch.bool or ids.ndim != 2:
            raise InputError(f"{name} {tuple(ids.shape)} {ids.dtype}: token ids are whole numbers (samples, tokens)")
        embedding = _embedding(model)
        size = None if embedding is None else embedding.num_embeddings
        outside = (ids < 0) if size is None else (ids < 0) | (ids >= size)
        if bool(outside.any()):
            sample, position = outside.nonzero()[0].tolist()
            raise InputError(
                f"token id {int(ids[sample, position])} (sample {sample}, position {position}) is outside the "
                f"vocabulary{'' if size is None else f' of {size} tokens'}"
            )


def check_padding(inputs: Mapping[str, Any], samples: int) -> None:
    """Raises `InputError` if a padding mask has another shape than its token ids (N, T)."""
    for name in IDS:
        mask_name = name.replace("input_ids", "attention_mask")
        ids, mask = inputs.get(name), inputs.get(mask_name)
        if not isinstance(ids, Tensor) or not isinstance(mask, Tensor) or mask.ndim > 2:
            continue
        # MusicGen has a row of ids for each codebook of a sample, and one of the mask for all of them.
        if mask.shape not in (ids.shape, (samples, ids.shape[1])):
            raise InputError(
                f"{mask_name} {tuple(mask.shape)} does not fit {name} {tuple(ids.shape)}: give one entry per token"
            )


def check_shapes(model: nn.Module, inputs: Mapping[str, Any]) -> None:
    """Raises `InputError` for embeddings of another width than the model's, and for other than one position a token."""
    embeddings, ids, places = (inputs.get(name) for name in ("inputs_embeds", "input_ids", "position_ids"))
    if isinstance(embeddings, Tensor):
        embedding = _embedding(model)
        width = None if embedding is None else embedding.embedding_dim
        if embeddings.ndim != 3 or not embeddings.is_floating_point() or width not in (None, embeddings.shape[2]):
            expected = f"(samples, tokens, {'width' if width is None else width})"
            raise InputError(f"inputs_embeds {tuple(embeddings.shape)} {embeddings.dtype}: expected floats {expected}")
    tokens = ids if isinstance(ids, Tensor) else embeddings
    if isinstance(places, Tensor) and isinstance(tokens, Tensor) and places.shape[-1:] != tokens.shape[1:2]:
        raise InputError(
            f"position_ids {tuple(places.shape)}: expected one position for each of the {tokens.shape[1]} tokens"
        )


def check_positions(model: nn.Module, inputs: Mapping[str, Any]) -> None:
    """Raises `InputError` if a row has more tokens than the model has positions."""
    limit = position_limit(model)
    for name in (*IDS, "inputs_embeds"):
        value = inputs.get(name)
        if limit is not None and isinstance(value, Tensor) and value.shape[1] > limit:
            raise InputError(f"{value.shape[1]} tokens, but the model has positions for {limit}: use at most {limit}")


def _real_positions(model: nn.Module, inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    """The positions of tokens behind the padding that rows begin with, if the model needs to be told."""
    ids, mask = inputs.get("input_ids"), inputs.get("attention_mask")
    if "position_ids" in inputs or not isinstance(ids, Tensor) or not isinstance(mask, Tensor):
        return {}
    if mask.ndim != 2 or mask.shape != ids.shape or bool(mask[:, 0].all()) or not counts_columns(model):
        return {}
    return {"position_ids": (mask.ne(0).long().cumsum(-1) - 1).clamp(min=0)}


def _as_dict(inputs: Any) -> dict[str, Any]:
    if isinstance(inputs, Mapping):
        return dict(inputs)
    try:
        ids = torch.as_tensor(inputs)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            "inputs: expected token ids (N, T) in rows of one length (pad shorter ones and give an attention_mask), or "
            "a dict of model inputs"
        ) from error
    if ids.ndim != 2:
        raise InputError(f"inputs {tuple(ids.shape)}: token ids must be (samples, tokens)")
    return {"input_ids": ids}


def _embedding(model: nn.Module) -> nn.Embedding | None:
    """The token embedding; None for a model that does not name it."""
    if not isinstance(model, PreTrainedModel):
        return None
    try:
        embedding = model.get_input_embeddings()
    except NotImplementedError:
        return None
    return embedding if isinstance(embedding, nn.Embedding) else None


def _is_out_of_memory(error: RuntimeError) -> bool:
    """Includes the CPU allocator's error, which has no class of its own."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
