"""Measuring a model on given inputs, in batches."""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.probes.batching import in_batches
from sinkscope.probes.checks import check_ids, check_positions, check_weights
from sinkscope.probes.measurements.measurement import Measurement
from sinkscope.probes.observers.observer import Observer
from sinkscope.probes.observing import DEFAULT, EVERY, observe, unwrapped

FRUGAL = {"use_cache": False, "logits_to_keep": 1}  # neither changes what is measured, both save memory


def measure(
    model: nn.Module,
    inputs: Int[Tensor, "sample position"] | Mapping[str, Any] | Sequence[Sequence[int]],
    observers: Sequence[Observer] | str | None = None,
    *,
    batch_size: int = 8,
    progress: Callable[[int, int], object] | None = None,
    about: Mapping[str, Any] | None = None,
    tokenizer: Any = None,
) -> Measurement:
    """Run `model` on `inputs` without gradients, in eval mode, and return what the observers saw.

    `inputs`: token ids (N, T), or a dict of model inputs (`input_ids`, `attention_mask`, `inputs_embeds`,
    `pixel_values` …) whose tensors have N rows. `observers`: default `AttentionReceived("all")`, `HiddenNorms`,
    `QueryKeyValueNorms`; "all" is every observer, of which those that do not apply yield nothing. `progress(done,
    total)` is called after each batch; `about` is added to the record's `input`; with a `tokenizer` the record holds
    the texts of the tokens. A batch that does not fit into memory is halved, with a warning. Activations that are NaN
    or infinite are a finding: the record's `non_finite` names the first place, a `UserWarning` says so, and they count
    nowhere. Raises `InputError` for empty inputs, ids outside the vocabulary, more tokens than the model has positions,
    and NaN in weights.
    """
    model, given = unwrapped(model), _as_dict(inputs)
    samples = _samples(given)
    check_weights(model)
    check_ids(model, given)
    check_positions(model, given)
    if batch_size < 1:
        raise InputError(f"batch_size = {batch_size}: at least 1")
    options = {name: value for name, value in FRUGAL.items() if name in inspect.signature(model.forward).parameters}
    if "labels" in given:
        options.pop("logits_to_keep", None)
    device = next((weight.device for weight in model.parameters() if not weight.is_meta), torch.device("cpu"))
    chosen, inapplicable = _chosen(observers, model)
    with _evaluating(model), observe(model, *chosen) as seen, torch.no_grad():

        def run(rows: slice) -> None:
            model(**_part(given, rows, samples, device), **options)
            if progress is not None:
                progress(rows.stop, samples)

        in_batches(run, samples, batch_size, f"of {_length(given)} tokens" if "input_ids" in given else "")
        measured = seen.measurement()
    return _told(_annotated(measured, about, tokenizer, inapplicable))


def _chosen(
    observers: Sequence[Observer] | str | None, model: nn.Module
) -> tuple[tuple[Observer, ...], dict[str, str]]:
    """The observers, and of "all" those that a model has nothing for, with the reason."""
    if observers is None:
        return DEFAULT, {}
    if observers == "all":
        reasons = {observer: _obstacle(observer, model) for observer in EVERY}
        applicable = tuple(observer for observer, reason in reasons.items() if reason is None)
        return applicable, {type(observer).__name__: reason for observer, reason in reasons.items() if reason}
    if isinstance(observers, str) or not observers:
        raise InputError(f"observers = {observers!r}: expected a list of observers, 'all', or None")
    return tuple(observers), {}


def _obstacle(observer: Observer, model: nn.Module) -> str | None:
    try:
        observer.bound(model)
    except UnsupportedModelError as error:
        return str(error)
    return None


def _as_dict(inputs: Any) -> dict[str, Any]:
    if isinstance(inputs, Mapping):
        return dict(inputs)
    try:
        ids = torch.as_tensor(inputs)
    except (TypeError, ValueError) as error:
        raise InputError("inputs: expected token ids (N, T) or a dict of model inputs") from error
    if ids.ndim != 2:
        raise InputError(f"inputs {tuple(ids.shape)}: token ids must be (samples, tokens)")
    return {"input_ids": ids}


def _samples(given: Mapping[str, Any]) -> int:
    tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
    if not tensors or any(value.numel() == 0 for value in tensors.values()):
        raise InputError("inputs are empty: nothing to measure")
    main = next((name for name in ("input_ids", "inputs_embeds") if name in tensors), next(iter(tensors)))
    return len(tensors[main])


def _part(given: Mapping[str, Any], rows: slice, samples: int, device: torch.device) -> dict[str, Any]:
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
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode, and afterwards every module in the mode in which it was."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def _length(given: Mapping[str, Any]) -> int:
    return int(given["input_ids"].shape[1])


def _annotated(
    measurement: Measurement, about: Mapping[str, Any] | None, tokenizer: Any, inapplicable: Mapping[str, str]
) -> Measurement:
    record = measurement.record
    record["input"] = {**record["input"], **(about or {})}
    if inapplicable:
        record["not_applicable"] = dict(inapplicable)
    if tokenizer is not None and "token_id" in measurement.data.coords:
        ids = [int(token) for token in np.unique(measurement.data["token_id"].values) if token >= 0]
        record["token_text"] = dict(zip(map(str, ids), tokenizer.convert_ids_to_tokens(ids), strict=True))
        record["special_tokens"] = sorted(set(tokenizer.all_special_ids) & set(ids))
    return Measurement(measurement.data.assign_attrs(record=json.dumps(record, allow_nan=False)))


def _told(measurement: Measurement) -> Measurement:
    if broken := measurement.record.get("non_finite"):
        count = f"{broken['samples']} sample{'' if broken['samples'] == 1 else 's'}"
        warnings.warn(
            f"the model's activations are NaN or infinite in {count}, first at {broken['first']}; they count nowhere",
            UserWarning,
            stacklevel=3,
        )
    return measurement
