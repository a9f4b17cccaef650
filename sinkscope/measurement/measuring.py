"""`ss.measure`: a model, or its name, on token ids, texts, a dataset or a loader."""

from __future__ import annotations

import inspect
import json
import logging
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from sinkscope.data import WindowKind, bos_remark, cut, fed
from sinkscope.data import texts as texts_of
from sinkscope.errors import InputError, UnsupportedModelError, unknown
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
from sinkscope.measurement.batch import LeftOut
from sinkscope.measurement.measurement import Measurement
from sinkscope.measurement.observers.observer import OBSERVERS, Observer, every
from sinkscope.measurement.observing import DEFAULT, observe
from sinkscope.model import load, load_tokenizer
from sinkscope.registry import imported

SETS = {"all": every, "few": lambda: DEFAULT}


def resolve_observers(observers: Sequence[Observer | str] | str | None) -> tuple[Observer, ...]:
    """The observers of `measure`: those of a list, by name or as values; None is "few", what it takes by default.

    A name is "all" or "few", that of a class in `OBSERVERS`, or `module:Name` of one to be imported; it stands for one
    with its defaults. A value takes the place of one of its class that a name stands for. Raises `InputError` for
    anything else.
    """
    if observers is None:
        return DEFAULT
    given = [observers] if isinstance(observers, str) else list(observers)
    if not given:
        raise InputError(f"observers = {observers!r}: expected a list of observers, 'all', or None")
    by_name: dict[type, Observer] = {}
    values: list[Observer] = []
    for one in given:
        if isinstance(one, str):
            by_name |= {type(observer): observer for observer in _called(one)}
        else:
            values.append(one)
    kinds = {type(one) for one in values}
    if "all" in given:  # their order, whatever stands before
        by_name = {type(one): one for one in every()} | by_name
    return (*(observer for kind, observer in by_name.items() if kind not in kinds), *values)


def named_in(observers: Sequence[Observer | str] | str | None) -> frozenset[str]:
    """The classes of observers that are asked for one by one, and not because they are among all."""
    given = [observers] if isinstance(observers, str) else observers or ()
    return frozenset(
        one.rpartition(":")[2] if isinstance(one, str) else type(one).__name__ for one in given if one not in SETS
    )


def _called(name: str) -> tuple[Observer, ...]:
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
        raise InputError(f"observer '{name}': {kind!r} is no class of observers")
    try:
        return (kind(),)
    except TypeError as error:
        raise InputError(f"observer '{name}' is taken with its defaults, but {error}") from error


FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")
PRINTED = (*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1))


def byte_alphabet() -> dict[str, int]:
    """The byte for which a byte-level vocabulary writes each character.

    Printable bytes of Latin-1 stand for themselves, the other 68 are written as the characters from U+0100 on, in
    their order: Ġ is a space, Ċ a line end, as in the encoder of GPT-2.
    """
    others = [byte for byte in range(256) if byte not in PRINTED]
    return {chr(byte): byte for byte in PRINTED} | {chr(256 + index): byte for index, byte in enumerate(others)}


def token_bytes(tokenizer: Any, ids: Sequence[int], pieces: Sequence[str | None]) -> dict[str, str]:
    """Bytes in hexadecimal by token id, of those pieces that are written as bytes; the others stand for themselves.

    A byte-level vocabulary writes every piece that way but those that were added as they are (special tokens and
    others); any other vocabulary writes at most the bytes of characters that it lacks, as <0xE2> (SentencePiece).
    """
    added = set(getattr(tokenizer, "added_tokens_encoder", {}).values())
    alphabet = byte_alphabet() if _is_byte_level(tokenizer) else {}
    found = {}
    for token, piece in zip(ids, pieces, strict=True):
        if not piece:
            continue
        if alphabet and token not in added and all(letter in alphabet for letter in piece):
            found[str(token)] = bytes(alphabet[letter] for letter in piece).hex()
        elif not alphabet and (match := FALLBACK.fullmatch(piece)):
            found[str(token)] = match[1].lower()
    return found


def _is_byte_level(tokenizer: Any) -> bool:
    """Whether the decoder turns characters into bytes; slow tokenizers that do have a table of their own for it."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    if decoder is None:
        return hasattr(tokenizer, "byte_decoder")
    return "ByteLevel" in _kinds(json.loads(decoder.__getstate__()))


def _kinds(decoder: dict[str, Any]) -> set[str]:
    return {decoder["type"]}.union(*map(_kinds, decoder.get("decoders", [])))


log = logging.getLogger(__name__)
FIELD = "text"
MOST = 100  # rows of what may have no end
PADDED = {"input_ids": 0, "attention_mask": 0, "token_type_ids": 0, "special_tokens_mask": 1}  # behind a row's end
UNREAD = {"special_tokens_mask", "offset_mapping", "overflow_to_sample_mapping", "length"}  # of tokenizers, not models


@dataclass(frozen=True, eq=False)
class ModelInputs:
    """Inputs as `_run_batches` takes them, what the record says of them, and the tokenizer that made them."""

    inputs: Any
    about: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: Any = None


def read_inputs(
    inputs: Any,
    texts: Any,
    tokenizer: Callable[[], Any],
    *,
    tokens: int,
    samples: int | None,
    windows: WindowKind,
    field: str | None,
) -> ModelInputs:
    """The inputs of a model. `tokenizer` is asked for where there are texts. Raises `InputError` as `measure` does."""
    if (inputs is None) == (texts is None):
        raise InputError("measure takes inputs (token ids, or a dict of model inputs) or texts=…: give one of the two")
    if samples is not None and samples < 1:
        raise InputError(f"samples = {samples}: at least 1")
    if texts is None:
        ready = _ready(inputs, samples)
        if ready is not None:
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
        made = tokenizer()
        found = cut(made, _checked(rows), tokens, windows, most)
        remark = bos_remark(made, found.rows)
        if remark:
            log.warning("texts begin%s", remark.removeprefix(","))
        first = found.first + remark
        about = {"kind": "texts", "windows": windows, "description": found.description, "first": first}
        return ModelInputs(_padded({"input_ids": found.rows}), about, made)
    if texts is not None:
        raise InputError(f"texts: expected strings, got a {type(first).__name__}; token ids go to inputs")
    chosen = list(islice(_with_ids(rows), most))
    said = f"{len(chosen)} rows of a {type(source).__name__}"
    return ModelInputs(_padded({"input_ids": [list(map(int, row)) for row in chosen]}), {"description": said})


def _ready(inputs: Any, samples: int | None) -> Any:
    """Inputs that need nothing but padding, or None."""
    if isinstance(inputs, Tensor):
        return inputs if samples is None else inputs[:samples]
    if isinstance(inputs, Mapping):
        return _few(_padded({name: value for name, value in inputs.items() if name not in UNREAD}), samples)
    if not isinstance(inputs, list | tuple) or not inputs:
        return inputs if isinstance(inputs, list | tuple) else None
    if all(isinstance(one, Mapping) and isinstance(one.get("input_ids"), list) for one in inputs):
        return None  # rows of a tokenized dataset
    if all(isinstance(one, Mapping) for one in inputs):
        return list(inputs)
    if all(isinstance(one, list | tuple) and all(isinstance(id_, int) for id_ in one) for one in inputs):
        return _few(_padded({"input_ids": [list(one) for one in inputs]}), samples)
    return None if any(isinstance(one, str) for one in inputs) else inputs


def _few(inputs: dict[str, Any], samples: int | None) -> dict[str, Any]:
    if samples is None:
        return inputs
    return {name: value[:samples] if isinstance(value, Tensor) else value for name, value in inputs.items()}


def _padded(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Lists as tensors; rows of unequal lengths padded on the right, with an `attention_mask` that says where.

    Raises `InputError` for unequal rows of what is not known to bear padding.
    """
    lists = {name: value for name, value in inputs.items() if _is_rows(value)}
    lengths = {name: [len(row) for row in rows] for name, rows in lists.items()}
    made = dict(inputs)
    for name, rows in lists.items():
        longest = max(lengths[name])
        if min(lengths[name]) == longest:
            made[name] = torch.tensor(rows)
            continue
        if name not in PADDED:
            raise InputError(f"inputs: the rows of '{name}' have unequal lengths: pad them, as your tokenizer does")
        made[name] = torch.tensor([[*row, *[PADDED[name]] * (longest - len(row))] for row in rows])
        if name == "input_ids" and "attention_mask" not in inputs:
            made["attention_mask"] = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    return made


def _is_rows(value: Any) -> bool:
    plain = isinstance(value, list | tuple) and len(value) > 0
    return plain and all(isinstance(row, list | tuple) and row and isinstance(row[0], int | float) for row in value)


def _rows(source: Any, field: str | None) -> tuple[Iterator[Any], bool]:
    """The rows of a file, a list, a dataset or a loader, and whether these may have no end."""
    if isinstance(source, str | Path):
        path = Path(source)
        if not path.exists():
            raise InputError(f"texts: no file or folder '{source}'; a single text goes in a list")
        return iter(texts_of(path, field)), False
    if isinstance(source, Mapping):  # of a `datasets` dictionary, or a table as columns
        names = ", ".join(map(str, source))
        raise InputError(f"texts: expected rows, got a mapping of {names}: pass one of these")
    if not isinstance(source, Iterable) and not hasattr(source, "__getitem__"):
        raise InputError(f"expected texts, a dataset or a loader, got a {type(source).__name__}")
    endless = not isinstance(source, list | tuple)
    rows = iter(source) if hasattr(source, "__iter__") else (source[index] for index in range(len(source)))
    return chain.from_iterable(_unbatched(row, field) for row in rows), endless


def _unbatched(row: Any, field: str | None) -> Iterable[Any]:
    """The samples of what a dataset or a loader gives at a time."""
    if isinstance(row, str):
        return [row]
    if isinstance(row, Mapping):
        wanted = field or FIELD
        if wanted in row:
            value = row[wanted]
            return [value] if isinstance(value, str) else list(value)
        if "input_ids" in row and field is None:
            return _real(row)
        raise InputError(f"a row has no field '{wanted}': it has {', '.join(map(str, row))}; name the text's field=…")
    if isinstance(row, Tensor) and row.ndim == 2:
        return list(row)
    if isinstance(row, list | tuple) and row and all(isinstance(one, str) for one in row):
        return row
    if isinstance(row, Tensor) or (isinstance(row, Sequence) and row and isinstance(row[0], int)):
        return [row]
    raise InputError(f"a row is a {type(row).__name__}: expected a text, token ids, or a dict with 'input_ids'")


def _real(row: Mapping[str, Any]) -> Iterator[Any]:
    """Token ids of each sample without its padding."""
    ids, mask = torch.as_tensor(row["input_ids"]), row.get("attention_mask")
    ids = ids[None] if ids.ndim == 1 else ids
    real = torch.ones_like(ids) if mask is None else torch.as_tensor(mask).reshape(ids.shape)
    yield from (one[keep.bool()] for one, keep in zip(ids, real, strict=True))


def _with_ids(rows: Iterable[Any]) -> Iterator[Any]:
    for row in rows:
        if isinstance(row, str):
            raise InputError("rows are token ids and texts in turn: give one of the two")
        yield row


def _checked(rows: Iterable[Any]) -> Iterator[str]:
    for row in rows:
        if not isinstance(row, str):
            raise InputError(f"texts: expected strings, got a {type(row).__name__}")
        yield row


FRUGAL = {"use_cache": False, "logits_to_keep": 1}  # neither changes what is measured, both save memory


def _run_batches(
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
    """The batches of `measure`, on inputs that need no tokenizer to be read."""
    model = unwrapped(model)
    parts = [checked_inputs(model, group, batch_size) for group in _groups(inputs)]
    total, done = sum(samples for _, samples in parts), 0
    options = {name: value for name, value in FRUGAL.items() if name in inspect.signature(model.forward).parameters}
    if any("labels" in given for given, _ in parts):
        options.pop("logits_to_keep", None)
    device = device_of(model)
    with evaluating(model), observe(model, *resolve_observers(observers), apart=apart) as seen, torch.no_grad():
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
            stacklevel=4,
        )
    for name, reason in record.get("unmasked", {}).items():
        warnings.warn(f"a mask with padding was given, but {name}: {reason}", UserWarning, stacklevel=4)
    named = {name: reason for name, reason in record.get("not_applicable", {}).items() if name in asked}
    for name, reason in (named | left_out.refused).items():
        warnings.warn(f"{name} is left out: {reason}", UserWarning, stacklevel=4)


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
    apart: bool = True,
) -> Measurement:
    """Run a model on `inputs` or `texts` without gradients, in eval mode, and return what the observers saw.

    Packed documents that all attention layers keep apart are samples of their own (coordinates `row` and `start`). A
    batch that does not fit into memory is halved, with a warning. Activations that are NaN or infinite are a finding:
    the record's `non_finite` names the first place, a `UserWarning` says so, and they count nowhere.

    Args:
        model: A model of transformers, or the name of one that `load` finds: a folder, a hub id, a GGUF file, a shipped
            model.
        inputs: Token ids (N, T), or rows of ids of unequal lengths, which are padded; a dict of model inputs
            (`input_ids`, `attention_mask`, `pixel_values` …) as tensors or lists; a list of such dicts where samples
            differ in size; a dataset of rows with `input_ids`, or a `DataLoader` of batches.
        observers: Default `AttentionReceived("all")`, `SlotReceived`, `HiddenNorms`, `QueryKeyValueNorms`. "all" is
            every observer; in a list, names and observers mix: `["all", Mine()]`. One that cannot read this model is
            left out; the record's `not_applicable` and `not_measured` say why, and a `UserWarning` where it was asked
            for by name.
        texts: Strings; a file or folder of them (plain text, JSON lines, CSV, Parquet); a `datasets` or torch dataset
            whose rows are strings or have the text in `field`; a loader of batches of those.
        tokenizer: The tokenizer of `texts`, itself or by name; by default the model's own. With one, the record holds
            the texts of the tokens.
        tokens: Length of a row of `texts`.
        samples: At most so many rows. None: all of what has a length in memory, and 100 of a dataset or loader.
        windows: "starts": the first `tokens` tokens of each text, with what the tokenizer puts first, shorter ones
            padded; "packed": the texts one after the other, cut into rows; "within": every stretch of `tokens` within a
            text. The record's `input` says which.
        field: The field that holds the text; "text" unless given.
        batch_size: Samples that go through the model at once.
        progress: `progress(done, total)`, called after each batch.
        about: More for the record's `input`.
        apart: False reads packed rows whole.

    Raises `InputError` for both or neither of `inputs` and `texts`, for texts without a tokenizer, for empty inputs,
    ids outside the vocabulary, more tokens than the model has positions, and NaN in weights; and as `load` does.
    """
    name, loaded = _loaded(model)

    def needed() -> Any:
        return _tokenizer(tokenizer, name)

    found = read_inputs(inputs, texts, needed, tokens=tokens, samples=samples, windows=windows, field=field)
    if isinstance(tokenizer, str | Path) and found.tokenizer is None:
        tokenizer = load_tokenizer(tokenizer)
    reads = _both_sides(loaded, found.inputs) if found.tokenizer is not None else found.inputs
    return _run_batches(
        loaded,
        reads,
        observers,
        batch_size=batch_size,
        progress=progress,
        about={**found.about, **(about or {})},
        tokenizer=found.tokenizer or tokenizer,
        apart=apart,
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
