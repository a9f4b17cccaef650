"""`ss.measure`: a model, or its name, on token ids, texts, a dataset or a loader."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from sinkscope import probes
from sinkscope.data import WindowKind, fed
from sinkscope.errors import InputError
from sinkscope.measurements import Measurement
from sinkscope.measuring.given import given
from sinkscope.model import load, load_tokenizer
from sinkscope.probes import Observer


def measure(
    model: nn.Module | str | Path,
    inputs: Any = None,
    observers: Sequence[Observer | str] | str | None = None,
    *,
    texts: Any = None,
    tokenizer: Any = None,
    tokens: int = 64,
    samples: int | None = None,
    windows: WindowKind = "starts",
    field: str | None = None,
    batch_size: int = 8,
    progress: Callable[[int, int], object] | None = None,
    about: Mapping[str, Any] | None = None,
) -> Measurement:
    """Run a model on `inputs` or `texts` without gradients, in eval mode, and return what the observers saw.

    `model`: a model of transformers, or the name of one that `load` finds: a folder, a hub id, a shipped model.

    `inputs`: token ids (N, T), or rows of ids of unequal lengths, which are padded; a dict of model inputs or what a
    tokenizer gives, as tensors or as lists; a list of such dicts where samples differ in size; a dataset of rows with
    `input_ids`, or a `DataLoader` of batches. Strings, and datasets of texts, are `texts`.

    `texts`: strings; a file or folder of them (plain text, JSON lines, CSV, Parquet); a `datasets` or torch dataset
    whose rows are strings or have the text in `field` ("text" unless given); a loader of batches of those. They need
    the model's tokenizer, which is found with the model, or `tokenizer`, itself or by name. `windows`: "starts": of
    each text its first `tokens` tokens, what the tokenizer puts first among them, shorter ones padded; "packed": the
    texts one behind the other, cut into windows of `tokens`; "within": every such stretch of each text, none across
    two. `samples`: at most so many rows; None is all of what has a length in memory, and 100 of a dataset or loader.
    The record's `input` says which windows these are.

    `observers`, `batch_size`, `progress`, `about`: as in `probes.measure`, which this calls. Raises `InputError` for
    both or neither of `inputs` and `texts`, for what is neither, for texts without a tokenizer, and as `load` and
    `probes.measure` do.
    """
    name, loaded = _loaded(model)

    def needed() -> Any:
        return _tokenizer(tokenizer, name)

    found = given(inputs, texts, needed, tokens=tokens, samples=samples, windows=windows, field=field)
    if isinstance(tokenizer, str | Path) and found.tokenizer is None:
        tokenizer = load_tokenizer(tokenizer)
    reads = _both_sides(loaded, found.inputs) if found.tokenizer is not None else found.inputs
    return probes.measure(
        loaded,
        reads,
        observers,
        batch_size=batch_size,
        progress=progress,
        about={**found.about, **(about or {})},
        tokenizer=found.tokenizer or tokenizer,
    )


def _loaded(model: Any) -> tuple[str, nn.Module]:
    """The model's name, and the model."""
    if isinstance(model, str | Path):
        return str(model), load(model)
    if isinstance(model, nn.Module):
        return str(getattr(getattr(model, "config", None), "name_or_path", "") or ""), model
    raise InputError(
        f"model: expected a model of transformers, or its folder, hub id or name; got a {type(model).__name__}"
    )


def _tokenizer(tokenizer: Any, name: str) -> Any:
    """The tokenizer that was given, by value or name, or the model's own."""
    if isinstance(tokenizer, str | Path):
        return load_tokenizer(tokenizer)
    if tokenizer is not None:
        return tokenizer
    if not name:
        raise InputError("texts need the model's tokenizer, and this model does not say its name: pass tokenizer=…")
    try:
        return load_tokenizer(name)
    except InputError as error:
        raise InputError(f"texts need the model's tokenizer: {error}; pass tokenizer=…") from error


def _both_sides(model: nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    """Texts as the model takes them: an encoder-decoder reads them on both sides."""
    config = getattr(model, "config", None)
    if not getattr(config, "is_encoder_decoder", False):
        return inputs
    if "attention_mask" in inputs:
        raise InputError(
            "the decoder of this model has no mask for texts of unequal lengths: use windows='within' or 'packed'"
        )
    return fed(model, inputs["input_ids"])
