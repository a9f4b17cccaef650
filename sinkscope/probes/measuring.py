"""Measuring a model on given inputs, in batches."""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import (
    checked_inputs,
    device_of,
    evaluating,
    family,
    has_attention,
    in_batches,
    part,
    unwrapped,
)
from sinkscope.measurements import Measurement
from sinkscope.probes.choosing import chosen, named_in
from sinkscope.probes.left_out import LeftOut
from sinkscope.probes.observers.observer import Observer
from sinkscope.probes.observing import observe
from sinkscope.probes.token_bytes import token_bytes

FRUGAL = {"use_cache": False, "logits_to_keep": 1}  # neither changes what is measured, both save memory


def measure(
    model: nn.Module,
    inputs: Int[Tensor, "sample position"] | Mapping[str, Any] | Sequence[Sequence[int]] | Sequence[Mapping[str, Any]],
    observers: Sequence[Observer | str] | str | None = None,
    *,
    batch_size: int = 8,
    progress: Callable[[int, int], object] | None = None,
    about: Mapping[str, Any] | None = None,
    tokenizer: Any = None,
    apart: bool = True,
) -> Measurement:
    """Run `model` on `inputs` without gradients, in eval mode, and return what the observers saw.

    `inputs`: token ids (N, T), or a dict of model inputs (`input_ids`, `attention_mask`, `inputs_embeds`,
    `pixel_values` …) whose tensors have N rows, or a list of such dicts where samples differ in size (images,
    recordings): their samples follow one another. `observers`: default `AttentionReceived("all")`, `SlotReceived`,
    `HiddenNorms`, `QueryKeyValueNorms`; "all" is every observer, and in a list names stand beside observers:
    `["all", Mine()]`, `["HiddenNorms"]` (`chosen`). One that cannot read this model leaves itself out; the record's
    `not_applicable` and `not_measured` say why, and a `UserWarning` where it was asked for by name.
    `progress(done, total)` is called after each batch; `about` is added to the record's `input`; with a `tokenizer` the
    record holds the texts of the tokens. Packed documents that all attention layers keep apart are samples of their
    own (coordinates `row` and `start`); `apart=False` reads rows whole. A batch that does not fit into memory is
    halved, with a warning. Activations that are NaN or infinite are a finding: the record's `non_finite` names the
    first place, a `UserWarning` says so, and they count nowhere. Raises `InputError` for empty inputs, ids outside the
    vocabulary, more tokens than the model has positions, and NaN in weights.
    """
    model = unwrapped(model)
    parts = [checked_inputs(model, group, batch_size) for group in _groups(inputs)]
    total, done = sum(samples for _, samples in parts), 0
    options = {name: value for name, value in FRUGAL.items() if name in inspect.signature(model.forward).parameters}
    if any("labels" in given for given, _ in parts):
        options.pop("logits_to_keep", None)
    device = device_of(model)
    with evaluating(model), observe(model, *chosen(observers), apart=apart) as seen, torch.no_grad():
        for given, samples in parts:

            def run(rows: slice, given: Any = given, samples: int = samples, before: int = done) -> None:
                batch = part(given, rows, samples, device) | options
                try:
                    model(**batch)
                except InputError:  # a ValueError too, with its reason
                    raise
                except (TypeError, ValueError, AttributeError, KeyError, IndexError) as error:
                    _check_returns_maps(model, batch, error)
                    raise
                if progress is not None:
                    progress(before + rows.stop, total)

            in_batches(run, samples, batch_size, f"of {_length(given)} tokens" if "input_ids" in given else "")
            done += samples
        measured = seen.measurement()
    measured = _annotated(measured, about, tokenizer)
    _warn_of(measured.record, seen.left_out, named_in(observers))
    return measured


def _check_returns_maps(model: nn.Module, batch: Mapping[str, Any], error: Exception) -> None:
    """Raises `UnsupportedModelError` where a pass fails because the model is asked for its maps, by its own code."""
    if has_attention(model):
        return  # it is not asked
    try:
        type(model).forward(model, **batch)  # past the hooks that ask
    except Exception:  # it fails without them too
        return
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    raise UnsupportedModelError(
        f"family '{family(model)}', its own code ends in an error when it is asked for its attention maps ({reason})"
    ) from error


def _groups(inputs: Any) -> list[Any]:
    """Inputs that go through the model separately: the dicts of a list, or everything at once."""
    several = isinstance(inputs, list | tuple) and len(inputs) > 0 and all(isinstance(it, Mapping) for it in inputs)
    return list(inputs) if several else [inputs]


def _length(given: Mapping[str, Any]) -> int:
    return int(given["input_ids"].shape[1])


def _annotated(measurement: Measurement, about: Mapping[str, Any] | None, tokenizer: Any) -> Measurement:
    record = measurement.record
    record["input"] = {**record["input"], **(about or {})}
    if tokenizer is not None and "token_id" in measurement.data.coords:
        ids = [int(token) for token in np.unique(measurement.data["token_id"].values) if token >= 0]
        pieces = tokenizer.convert_ids_to_tokens(ids)
        record["token_text"] = dict(zip(map(str, ids), pieces, strict=True))
        if written := token_bytes(tokenizer, ids, pieces):
            record["token_bytes"] = written
        record["special_tokens"] = sorted(set(tokenizer.all_special_ids) & set(ids))
    return Measurement(measurement.data.assign_attrs(record=json.dumps(record, allow_nan=False)))


def _warn_of(record: Mapping[str, Any], left_out: LeftOut, asked: frozenset[str]) -> None:
    """Say what was NaN, which layers were refused, and which observers that were `asked` for cannot read the model."""
    if broken := record.get("non_finite"):
        count = f"{broken['samples']} sample{'' if broken['samples'] == 1 else 's'}"
        warnings.warn(
            f"the model's activations are NaN or infinite in {count}, first at {broken['first']}; they count nowhere",
            UserWarning,
            stacklevel=3,
        )
    for name, reason in record.get("unmasked", {}).items():
        warnings.warn(f"a mask with padding was given, but {name}: {reason}", UserWarning, stacklevel=3)
    named = {name: reason for name, reason in record.get("not_applicable", {}).items() if name in asked}
    for name, reason in (named | left_out.refused).items():
        warnings.warn(f"{name} is left out: {reason}", UserWarning, stacklevel=3)
