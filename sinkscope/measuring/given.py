"""What a model is to read, from whatever holds it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sinkscope.data import WindowKind, bos_remark, cut
from sinkscope.data import texts as texts_of
from sinkscope.errors import InputError

log = logging.getLogger(__name__)
FIELD = "text"
MOST = 100  # rows of what may have no end
PADDED = {"input_ids": 0, "attention_mask": 0, "token_type_ids": 0, "special_tokens_mask": 1}  # behind a row's end
UNREAD = {"special_tokens_mask", "offset_mapping", "overflow_to_sample_mapping", "length"}  # of tokenizers, not models


@dataclass(frozen=True, eq=False)
class Given:
    """Inputs as `probes.measure` takes them, what the record says of them, and the tokenizer that made them."""

    inputs: Any
    about: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: Any = None


def given(
    inputs: Any,
    texts: Any,
    tokenizer: Callable[[], Any],
    *,
    tokens: int,
    samples: int | None,
    windows: WindowKind,
    field: str | None,
) -> Given:
    """The inputs of a model. `tokenizer` is asked for where there are texts. Raises `InputError` as `measure` does."""
    if (inputs is None) == (texts is None):
        raise InputError("measure takes inputs (token ids, or a dict of model inputs) or texts=…: give one of the two")
    if samples is not None and samples < 1:
        raise InputError(f"samples = {samples}: at least 1")
    if texts is None:
        ready = _ready(inputs, samples)
        if ready is not None:
            return Given(ready)
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
        return Given(_padded({"input_ids": found.rows}), about, made)
    if texts is not None:
        raise InputError(f"texts: expected strings, got a {type(first).__name__}; token ids go to inputs")
    chosen = list(islice(_with_ids(rows), most))
    said = f"{len(chosen)} rows of a {type(source).__name__}"
    return Given(_padded({"input_ids": [list(map(int, row)) for row in chosen]}), {"description": said})


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
