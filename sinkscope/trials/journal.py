"""What a search over heads has done so far, on disk: an interrupted search resumes from there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import nn

from sinkscope.errors import InputError
from sinkscope.files import append_line, whole_lines
from sinkscope.hooks import model_digest
from sinkscope.trials.arm import add_tensors

NAME = "heads.jsonl"


@dataclass(frozen=True, eq=False)
class Journal:
    """Lines of JSON, the first of which identifies the search; each is on disk before the next pass begins."""

    path: Path | None
    lines: list[dict[str, Any]]

    @classmethod
    def open(cls, folder: str | Path | None, search: str) -> Journal:
        """The journal in a folder, new or existing; a last line that was cut short is dropped.

        Raises `InputError` for the journal of another search.
        """
        if folder is None:
            return cls(None, [])
        path = Path(folder) / NAME
        journal = cls(path, whole_lines(path))
        if journal.lines and journal.lines[0].get("search") != search:
            raise InputError(f"{path} is of another search (other texts, settings, heads or model): name a new folder")
        if not journal.lines:
            journal.keep({"search": search})
        return journal

    def keep(self, line: dict[str, Any]) -> None:
        """Add a line."""
        self.lines.append(line)
        if self.path is not None:
            append_line(self.path, line)

    def scores(self, key: Sequence[Any]) -> Float[np.ndarray, " text"] | None:
        """The scores of a pass; None if it was not made yet."""
        line = next((line for line in self.lines if line.get("pass") == list(key)), None)
        return None if line is None else np.asarray(line["scores"], dtype=np.float64)

    def estimates(self, start: int, stop: int) -> list[Any] | None:
        """The terms of estimates, summed over these rows, [term][setting][layer][head]; None if not made yet."""
        return next((line["estimates"] for line in self.lines if line.get("rows") == [start, stop]), None)


def identity(
    model: nn.Module,
    inputs: Mapping[str, Any],
    options: Sequence[Any],
    heads: Sequence[Any],
    objective: str,
    from_token: int,
) -> str:
    """A hash of everything that a search depends on.

    Args:
        model: Its configuration, weights (`model_digest`) and dtype are hashed, and its name.
        inputs: The tensors of the texts.
        options: The settings to choose from.
        heads: The heads to try, (layer, head).
        objective: The objective's name.
        from_token: Only predictions from this token on count.
    """
    digest = hashlib.sha256()
    config = getattr(model, "config", None)
    about: list[Any] = [
        str(getattr(config, "name_or_path", "")),
        type(model).__name__,
        objective,
        from_token,
        list(heads),
    ]
    about += [[option.name, str(option.of_heads(None).describe())] for option in options]
    weight = next(model.parameters())
    about += [str(weight.dtype), model_digest(model)]
    digest.update(json.dumps(about).encode())
    add_tensors(digest, inputs)
    return digest.hexdigest()
