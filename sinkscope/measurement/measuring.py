"""`ss.measure`: run a model on token ids, texts, a dataset or a loader, and return what the observers saw.

How an attention weight is read, file by file: `measure` here runs the batches; `observing.py` receives each attention
call; `calls/reading.py` turns its arguments into an `AttentionCall` with one meaning for all families; `calls/guard.py`
checks it against the layer's output; `calls/call.py` and `calls/chunks.py` compute its weights, a few rows at a time;
`observers/received.py` sums them over queries; `batch.py` keeps the sums; `assembly.py` makes labeled arrays of them.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sinkscope.data import WindowKind, bos_remark, cut, fed
from sinkscope.data import texts as texts_of
from sinkscope.errors import InputError, UnsupportedModelError, unknown
from sinkscope.hooks import (
    FittingBatches,
    checked_inputs,
    device_of,
    evaluating,
    family,
    has_attention,
    part,
    samples_of,
    unwrapped,
    without_logits,
)
from sinkscope.measurement.batch import LeftOut
from sinkscope.measurement.measurement import Measurement
from sinkscope.measurement.observers.observer import OBSERVERS, Observer, every
from sinkscope.measurement.observing import DEFAULT, observe
from sinkscope.measurement.texts import token_bytes
from sinkscope.model import load, load_tokenizer
from sinkscope.registry import imported

log = logging.getLogger(__name__)
SETS = {"all": every, "few": lambda: DEFAULT}
FIELD = "text"
MOST = 100  # rows read from a source that may be endless
PADDED = {"input_ids": 0, "attention_mask": 0, "token_type_ids": 0, "special_tokens_mask": 1}  # values of padding
UNREAD = {"special_tokens_mask", "offset_mapping", "overflow_to_sample_mapping", "length"}  # no input of a model


def measure(
    model: nn.Module | str | Path,
    inputs: Any = None,
    observers: Sequence[Observer | str] | str | None = None,
    *,
    texts: Any = None,
    tokenizer: Any = None,
    tokens: int | None = None,
    samples: int | None = None,
    windows: WindowKind | None = None,
    field: str | None = None,
    batch_size: int = 8,
    progress: Callable[[int, int], object] | None = None,
    about: Mapping[str, Any] | None = None,
    apart: bool = True,
) -> Measurement:
    """Run a model on `inputs` or `texts` without gradients, in eval mode, and return what the observers saw.

    Packed documents that all attention layers keep apart are separate samples (coordinates `row` and `start`). A batch
    that does not fit into memory is halved, with a warning. NaN or infinite activations are a finding: the record's
    `non_finite` names the first place, a `UserWarning` reports it, and no statistic counts them.

    Args:
        model: A transformers model, or a name that `load` accepts: a folder, a hub id, a GGUF file, a shipped model.
        inputs: Token ids (N, T), or rows of ids of unequal lengths, which are padded; a dict of model inputs
            (`input_ids`, `attention_mask`, `pixel_values` …) as tensors or lists; a list of such dicts where samples
            differ in size; a dataset of rows with `input_ids`, or a `DataLoader` of batches.
        observers: Default `AttentionReceived("all")`, `SlotReceived`, `HiddenNorms`, `QueryKeyValueNorms`. "all" runs
            every observer; a list may mix names and observers: `["all", Mine()]`. An observer that cannot read this
            model is left out; the record's `not_applicable` and `not_measured` give the reason, with a `UserWarning`
            if it was requested by name.
        texts: Strings; a file or folder of them (plain text, JSON lines, CSV, Parquet); a `datasets` or torch dataset
            whose rows are strings or have the text in `field`; a loader of batches of those.
        tokenizer: The tokenizer of `texts`, as an object or by name; default: the model's. With a tokenizer, the
            record holds the texts of the tokens.
        tokens: Length of a row of `texts`, 64 by default.
        samples: Maximum number of rows. None: all rows of a source with a length in memory, 100 of a dataset or loader.
        windows: "starts": the first `tokens` tokens of each text, with the tokenizer's BOS if it adds one, shorter
            texts padded; "packed": the texts concatenated and cut into rows; "within": consecutive stretches of each
            text, each with that BOS, shorter rests left out. Default: "within" for files and folders, as `sinkscope
            measure --text` reads them, and "starts" for other texts. The record's `input` holds the choice.
        field: The field that holds the text; default "text".
        batch_size: Samples per forward pass.
        progress: `progress(done, total)`, called after each batch.
        about: Further entries for the record's `input`.
        apart: False reads packed rows as wholes.

    Raises `InputError` if both or neither of `inputs` and `texts` are given, for `tokens`, `windows` or `field` without
    texts, for texts without a tokenizer, empty inputs, ids outside the vocabulary, more tokens than the model has
    positions, and NaN in weights; and as `load` does.
    """
    name, model = _loaded(model)
    read = read_inputs(
        inputs,
        texts,
        lambda: _tokenizer(tokenizer, name),
        tokens=tokens,
        samples=samples,
        windows=windows,
        field=field,
    )
    if isinstance(tokenizer, str | Path) and read.tokenizer is None:
        tokenizer = load_tokenizer(tokenizer)
    model_inputs = read.inputs if read.tokenizer is None else _on_both_sides(model, read.inputs)
    model = unwrapped(model)
    groups = [checked_inputs(model, group, batch_size) for group in _groups(model_inputs)]
    total, done = sum(count for _, count in groups), 0
    device = device_of(model)
    with evaluating(model), observe(model, *resolve_observers(observers), apart=apart) as observation, torch.no_grad():
        for group, count in groups:
            length = f"of {int(group['input_ids'].shape[1])} tokens" if "input_ids" in group else ""
            batches = FittingBatches(count, batch_size, length)
            for rows in batches:
                batch = part(group, rows, count, device) | without_logits(model, group)
                with batches.halved_if_out_of_memory():
                    try:
                        model(**batch)
                    except InputError:  # a ValueError as well, but it says what is wrong
                        raise
                    except (TypeError, ValueError, AttributeError, KeyError, IndexError) as error:
                        _check_returns_maps(model, batch, error)
                        raise
                    if progress is not None:
                        progress(done + rows.stop, total)
            done += count
        measured = observation.measurement()
    measured = _annotated(measured, {**read.about, **(about or {})}, read.tokenizer or tokenizer)
    _warn(measured.record, observation.left_out, named_in(observers))
    return measured


def resolve_observers(observers: Sequence[Observer | str] | str | None) -> tuple[Observer, ...]:
    """The observers that `measure` runs for its argument `observers`.

    A name is "all", "few" (the default), a class in `OBSERVERS`, or `module:Name`, and means that observer with its
    defaults. An observer given as a value replaces the one of its class that a name adds. Raises `InputError` for
    anything else.
    """
    if observers is None:
        return DEFAULT
    requested = [observers] if isinstance(observers, str) else list(observers)
    if not requested:
        raise InputError(f"observers = {observers!r}: expected a list of observers, 'all', or None")
    by_name: dict[type, Observer] = {}
    values: list[Observer] = []
    for one in requested:
        if isinstance(one, str):
            by_name |= {type(observer): observer for observer in _observers_named(one)}
        else:
            values.append(one)
    kinds = {type(one) for one in values}
    if "all" in requested:  # in the order of the registry, wherever "all" is in the list
        by_name = {type(one): one for one in every()} | by_name
    return (*(observer for kind, observer in by_name.items() if kind not in kinds), *values)


def named_in(observers: Sequence[Observer | str] | str | None) -> frozenset[str]:
    """The classes of observers that were requested one by one, not as part of a set such as "all"."""
    requested = [observers] if isinstance(observers, str) else observers or ()
    return frozenset(
        one.rpartition(":")[2] if isinstance(one, str) else type(one).__name__ for one in requested if one not in SETS
    )


def _observers_named(name: str) -> tuple[Observer, ...]:
    if name in SETS:
        return SETS[name]()
    if ":" not in name:
        if name not in OBSERVERS:
            raise unknown("observer", name, [*SETS, *OBSERVERS])
        return (OBSERVERS[name](),)
    kind = imported(name)
    if isinstance(kind, Observer):
        return (kind,)
    if not (isinstance(kind, type) and issubclass(kind, Observer)):
        raise InputError(f"observer '{name}': {kind!r} is not a class of observers")
    try:
        return (kind(),)
    except TypeError as error:
        raise InputError(f"observer '{name}' is taken with its defaults, but {error}") from error


@dataclass(frozen=True, eq=False)
class ModelInputs:
    """Model inputs, what the record says about them, and the tokenizer that made them, if any."""

    inputs: Any
    about: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: Any = None


def read_inputs(
    inputs: Any,
    texts: Any,
    tokenizer: Callable[[], Any],
    *,
    tokens: int | None,
    samples: int | None,
    windows: WindowKind | None,
    field: str | None,
) -> ModelInputs:
    """The inputs of a model. Arguments as in `measure`, whose errors it raises; only texts need `tokenizer()`."""
    if (inputs is None) == (texts is None):
        raise InputError("measure takes inputs (token ids, or a dict of model inputs) or texts=…: give one of the two")
    if samples is not None and samples < 1:
        raise InputError(f"samples = {samples}: at least 1")
    if texts is None:
        ready = _ready(inputs, samples)
        if ready is not None:
            _check_unread(tokens=tokens, windows=windows, field=field)
            return ModelInputs(ready)
        if isinstance(inputs, str | Path):
            raise InputError(
                f"inputs {str(inputs)!r}: expected token ids or model inputs; texts and files go to texts=…"
            )
    source = inputs if texts is None else texts
    rows, endless = _rows(source, field)
    first = next(rows, None)
    if first is None:
        raise InputError("inputs are empty: nothing to measure")
    rows = chain([first], rows)
    most = MOST if samples is None and endless else samples
    if isinstance(first, str):
        text_tokenizer = tokenizer()
        windows = windows or ("within" if isinstance(source, str | Path) else "starts")
        windows_cut = cut(text_tokenizer, _only_texts(rows), 64 if tokens is None else tokens, windows, most)
        remark = bos_remark(text_tokenizer, windows_cut.rows)
        if remark:
            log.warning("texts begin%s", remark.removeprefix(","))
        about = {
            "kind": "texts",
            "windows": windows,
            "description": windows_cut.description,
            "first": windows_cut.first + remark,
        }
        return ModelInputs(_padded({"input_ids": windows_cut.rows}), about, text_tokenizer)
    if texts is not None:
        raise InputError(f"texts: expected strings, got a {type(first).__name__}; token ids go to inputs")
    _check_unread(tokens=tokens, windows=windows, field=field)
    ids = [list(map(int, row)) for row in islice(_only_ids(rows), most)]
    return ModelInputs(_padded({"input_ids": ids}), {"description": f"{len(ids)} rows of a {type(source).__name__}"})


def _check_unread(**given: Any) -> None:
    """Raises `InputError` for arguments that only texts have a use for."""
    if named := [name for name, value in given.items() if value is not None]:
        raise InputError(f"{named[0]} goes with texts=…: token ids and model inputs are measured as they are")


def _ready(inputs: Any, samples: int | None) -> Any:
    """Inputs that need at most padding; None for a source of rows."""
    if isinstance(inputs, np.ndarray):
        inputs = torch.from_numpy(inputs)
    if isinstance(inputs, Tensor):
        return inputs if samples is None else inputs[:samples]
    if isinstance(inputs, Mapping):
        return _first_rows(_padded({name: value for name, value in inputs.items() if name not in UNREAD}), samples)
    if not isinstance(inputs, list | tuple) or not inputs:
        return inputs if isinstance(inputs, list | tuple) else None
    inputs = [one.tolist() if isinstance(one, np.ndarray) else one for one in inputs]
    if all(isinstance(one, Mapping) and isinstance(one.get("input_ids"), list) for one in inputs):
        return None  # rows of a tokenized dataset
    if all(isinstance(one, Mapping) for one in inputs):
        return list(_first_of_all(inputs, samples))
    if all(isinstance(one, list | tuple) and all(isinstance(id_, int) for id_ in one) for one in inputs):
        return _first_rows(_padded({"input_ids": [list(one) for one in inputs]}), samples)
    return None if any(isinstance(one, str) for one in inputs) else inputs[:samples]


def _first_rows(inputs: dict[str, Any], samples: int | None) -> dict[str, Any]:
    """Inputs of at most `samples` samples."""
    if samples is None:
        return inputs
    count = samples_of(inputs)
    return part(inputs, slice(0, min(samples, count)), count, None)


def _first_of_all(groups: Iterable[Mapping[str, Any]], samples: int | None) -> Iterator[dict[str, Any]]:
    """Inputs that go through the model separately, up to `samples` rows of all of them."""
    for group in groups:
        if samples is not None and samples < 1:
            return
        first = _first_rows(dict(group), samples)
        yield first
        samples = None if samples is None else samples - samples_of(first)


def _padded(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Lists as tensors; rows of unequal lengths are padded on the right, with an `attention_mask`.

    Raises `InputError` for unequal rows of an input without a known padding value.
    """
    lists = {name: value for name, value in inputs.items() if _is_rows(value)}
    padded = dict(inputs)
    for name, rows in lists.items():
        lengths = [len(row) for row in rows]
        longest = max(lengths)
        if min(lengths) == longest:
            padded[name] = torch.tensor(rows)
            continue
        if name not in PADDED:
            raise InputError(f"inputs: the rows of '{name}' have unequal lengths: pad them, as your tokenizer does")
        padded[name] = torch.tensor([[*row, *[PADDED[name]] * (longest - len(row))] for row in rows])
        if name == "input_ids" and "attention_mask" not in inputs:
            padded["attention_mask"] = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    return padded


def _is_rows(value: Any) -> bool:
    plain = isinstance(value, list | tuple) and len(value) > 0
    return plain and all(isinstance(row, list | tuple) and row and isinstance(row[0], int | float) for row in value)


def _rows(source: Any, field: str | None) -> tuple[Iterator[Any], bool]:
    """The rows of a file, list, dataset or loader, and whether there may be no end of them."""
    if isinstance(source, str | Path):
        path = Path(source)
        if not path.exists():
            raise InputError(f"texts: no file or folder '{source}'; a single text goes in a list")
        return iter(texts_of(path, field)), False
    if isinstance(source, Mapping):  # a dictionary of datasets, or a table as columns
        names = ", ".join(map(str, source))
        raise InputError(f"texts: expected rows, got a mapping of {names}: pass one of these")
    if not isinstance(source, Iterable) and not hasattr(source, "__getitem__"):
        raise InputError(f"expected texts, a dataset or a loader, got a {type(source).__name__}")
    endless = not isinstance(source, list | tuple)
    rows = iter(source) if hasattr(source, "__iter__") else (source[index] for index in range(len(source)))
    return chain.from_iterable(_unbatched(row, field) for row in rows), endless


def _unbatched(row: Any, field: str | None) -> Iterable[Any]:
    """The samples of one item of a dataset or loader."""
    if isinstance(row, str):
        return [row]
    if isinstance(row, Mapping):
        wanted = field or FIELD
        if wanted in row:
            value = row[wanted]
            return [value] if isinstance(value, str) else list(value)
        if "input_ids" in row and field is None:
            return _without_padding(row)
        raise InputError(f"a row has no field '{wanted}': it has {', '.join(map(str, row))}; name the text's field=…")
    if isinstance(row, Tensor) and row.ndim == 2:
        return list(row)
    if isinstance(row, list | tuple) and row and all(isinstance(one, str) for one in row):
        return row
    if isinstance(row, Tensor) or (isinstance(row, Sequence) and row and isinstance(row[0], int)):
        return [row]
    raise InputError(f"a row is a {type(row).__name__}: expected a text, token ids, or a dict with 'input_ids'")


def _without_padding(row: Mapping[str, Any]) -> Iterator[Any]:
    """Token ids of each sample without its padding."""
    ids, mask = torch.as_tensor(row["input_ids"]), row.get("attention_mask")
    ids = ids[None] if ids.ndim == 1 else ids
    real = torch.ones_like(ids) if mask is None else torch.as_tensor(mask).reshape(ids.shape)
    yield from (one[keep.bool()] for one, keep in zip(ids, real, strict=True))


def _only_ids(rows: Iterable[Any]) -> Iterator[Any]:
    for row in rows:
        if isinstance(row, str):
            raise InputError("rows are token ids and texts in turn: give one of the two")
        yield row


def _only_texts(rows: Iterable[Any]) -> Iterator[str]:
    for row in rows:
        if not isinstance(row, str):
            raise InputError(f"texts: expected strings, got a {type(row).__name__}")
        yield row


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
    """The argument `tokenizer`, loaded if it is a name; the model's own if it is None."""
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


def _on_both_sides(model: nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    """Texts as model inputs: an encoder-decoder reads them on both sides."""
    config = getattr(model, "config", None)
    if not getattr(config, "is_encoder_decoder", False):
        return inputs
    if "attention_mask" in inputs:
        raise InputError(
            "the decoder of this model has no mask for texts of unequal lengths: use windows='within' or 'packed'"
        )
    return fed(model, inputs["input_ids"])


def _groups(inputs: Any) -> list[Any]:
    """Inputs that go through the model separately: the dicts of a list, or everything at once."""
    several = isinstance(inputs, list | tuple) and len(inputs) > 0 and all(isinstance(it, Mapping) for it in inputs)
    return list(inputs) if several else [inputs]


def _check_returns_maps(model: nn.Module, batch: Mapping[str, Any], error: Exception) -> None:
    """Raises `UnsupportedModelError` if a pass fails only because the model is asked for its attention maps."""
    if has_attention(model):
        return  # it is not asked for maps
    try:
        type(model).forward(model, **batch)  # past the hooks that ask
    except Exception:  # it fails without them too
        return
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    raise UnsupportedModelError(
        f"family '{family(model)}', its own code ends in an error when it is asked for its attention maps ({reason})"
    ) from error


def _annotated(measurement: Measurement, about: Mapping[str, Any], tokenizer: Any) -> Measurement:
    """The measurement with `about` and the texts of its tokens in its record."""
    record = measurement.record
    record["input"] = {**record["input"], **about}
    if tokenizer is not None and "token_id" in measurement.data.coords:
        ids = [int(token) for token in np.unique(measurement.data["token_id"].values) if token >= 0]
        pieces = tokenizer.convert_ids_to_tokens(ids)
        record["token_text"] = dict(zip(map(str, ids), pieces, strict=True))
        if written := token_bytes(tokenizer, ids, pieces):
            record["token_bytes"] = written
        record["special_tokens"] = sorted(set(tokenizer.all_special_ids) & set(ids))
    return Measurement(measurement.data.assign_attrs(record=json.dumps(record, allow_nan=False)))


def _warn(record: Mapping[str, Any], left_out: LeftOut, requested: frozenset[str]) -> None:
    """Warn about NaN, unused masks, refused layers, and `requested` observers that cannot read the model."""
    if broken := record.get("non_finite"):
        count = f"{broken['samples']} sample{'' if broken['samples'] == 1 else 's'}"
        warnings.warn(
            f"the model's activations are NaN or infinite in {count}, first at {broken['first']}; they count nowhere",
            UserWarning,
            stacklevel=3,
        )
    for name, reason in record.get("unmasked", {}).items():
        warnings.warn(f"a mask with padding was given, but {name}: {reason}", UserWarning, stacklevel=3)
    named = {name: reason for name, reason in record.get("not_applicable", {}).items() if name in requested}
    for name, reason in (named | left_out.refused).items():
        warnings.warn(f"{name} is left out: {reason}", UserWarning, stacklevel=3)
