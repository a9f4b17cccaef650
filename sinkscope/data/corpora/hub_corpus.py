"""The corpus `hf:NAME[:CONFIG[:SPLIT]]`: a dataset of the hub, or a local folder that `datasets` can read."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from sinkscope.data.corpora.corpus import Corpus, CorpusEntry, read_text
from sinkscope.errors import InputError
from sinkscope.errors.invalid import first_line
from sinkscope.files import cache_dir, cached_folder, write_json

logger = logging.getLogger(__name__)

HUB_CHARACTERS = 100_000_000


def load_hub(address: str, max_characters: int | None = None, field: str | None = None) -> Corpus:
    """Stream a dataset into the cache, once, and return its rows as documents (`SPLIT` is `train` unless given).

    At most `max_characters` characters are taken (`HUB_CHARACTERS` = 100 million unless given), in whole documents: a
    hub dataset may be larger than any disk. What was taken stays in the cache; a local folder is read anew each time.
    The text is the column `field`; unless given `text`, else the only column of strings. No code of a dataset is run.
    Raises `InputError` if `datasets` is not installed, the dataset cannot be reached or read, or no column is clearly
    its text.
    """
    name, config, split = _parse(address)
    limit = HUB_CHARACTERS if max_characters is None else max_characters
    decisive = [name, config, split, limit, *([] if field is None else [field])]
    key = hashlib.sha256(json.dumps(decisive).encode()).hexdigest()[:24]
    local = Path(name).exists()

    def build(draft: Path) -> None:
        _store(_texts(name, config, split, field), limit, draft)

    folder = cached_folder(cache_dir() / "hub" / key, build, reuse=not local)
    index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    entries = tuple(
        CorpusEntry(f"{number:09d}", partial(read_text, folder / "text", start, stop))
        for number, (start, stop) in enumerate(pairwise(index["bounds"]))
    )
    if index["truncated"]:
        logger.warning(
            "the corpus 'hf:%s' was cut after %d documents (max_characters=%d)", address, len(entries), limit
        )
    portable = ":".join(part for part in (Path(name).name if local else name, config, split) if part)
    return Corpus(name=f"hf:{portable}", entries=entries, truncated=index["truncated"])


def _parse(address: str) -> tuple[str, str | None, str]:
    parts = address.split(":")
    if not parts[0] or len(parts) > 3:
        raise InputError(f"corpus 'hf:{address}' is not of the form hf:NAME[:CONFIG[:SPLIT]]")
    name, config, split = [*parts, "", ""][:3]
    return name, config or None, split or "train"


def _texts(name: str, config: str | None, split: str, field: str | None) -> Iterator[str]:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise InputError("a corpus of the hub needs the package datasets: pip install 'sinkscope[data]'") from error
    try:
        rows = iter(load_dataset(name, config, split=split, streaming=True))
        first = next(rows, None)
        if first is None:
            raise InputError(f"the dataset '{name}' has no rows in the split '{split}'")
        column = _text_column(name, first, field)
        for row in chain([first], rows):
            text = row[column]
            if not isinstance(text, str | None):
                raise InputError(f"the column '{column}' of the dataset '{name}' holds {type(text).__name__}, not text")
            if text:
                yield text
    except InputError:
        raise
    except Exception as error:  # readers and transports of every kind are behind it, each with errors of its own
        reason = first_line(error)
        raise InputError(f"cannot read the dataset '{name}': {reason}") from error


def _text_column(name: str, row: Mapping[str, Any], field: str | None) -> str:
    if field is not None:
        if field not in row:
            raise InputError(f"the dataset '{name}' has no column '{field}' (columns: {', '.join(row)})")
        return field
    if "text" in row:
        return "text"
    strings = [column for column, value in row.items() if isinstance(value, str)]
    if len(strings) == 1:
        return strings[0]
    raise InputError(
        f"the dataset '{name}' has no column 'text' and {len(strings)} columns of strings (columns: {', '.join(row)})"
    )


def _store(texts: Iterable[str], limit: int, draft: Path) -> None:
    """Write texts end to end into `text`, and where each ends into `index.json`."""
    bounds, characters, truncated = [0], 0, False
    with (draft / "text").open("wb") as stream:
        for text in texts:
            characters += len(text)
            if characters > limit:
                truncated = True
                break
            # `read_text` refuses files with NUL, and a lone surrogate has no UTF-8.
            raw = text.replace("\0", "").encode("utf-8", "replace")
            bounds.append(bounds[-1] + stream.write(raw))
    write_json(draft / "index.json", {"bounds": bounds, "truncated": truncated})
