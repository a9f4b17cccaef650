"""The protected tokens as files that other programs can act on: positions and ids as JSON, masks as safetensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from sinkscope.quantization import Hazards
    from sinkscope.sinks import Tokens

WIDE = 1.0  # bits that the protected tokens take from a range, from which on a map is named


def tokens_as_data(model: str, tokens: Tokens, tokenizer: Any, hazards: Hazards | None) -> dict[str, Any]:
    """What was chosen, JSON-able.

    `positions`: protected in every row; `token_ids`: what stands there, where it is the same in all rows; `prefix_ids`:
    the ids of the positions 0 … n − 1 where these are among them, to be computed once in full precision and put before
    every prompt; `modules`: linear maps whose shared range these tokens widen by at least a bit, to be left
    unquantized (`ignore` of llm-compressor) where tokens cannot be protected.
    """
    chosen, rows = tokens.any_head(), tokens.rows
    assert rows is not None
    always = np.flatnonzero(chosen.all(0)).tolist()
    at = {place: sorted(set(rows.ids[:, place].tolist())) for place in always} if rows.ids is not None else {}
    same = {place: found[0] for place, found in at.items() if len(found) == 1}
    prefix = [same[place] for at, place in enumerate(always) if at == place and place in same]
    named = None if hazards is None else hazards.sites[hazards.sites["bits_lost"] >= WIDE]
    return {
        "model": model,
        "choice": tokens.describe(),
        "rows": len(chosen),
        "protected_per_row": tokens.count(),
        "positions": always,
        "token_ids": {str(place): token for place, token in same.items()},
        "tokens": {str(place): _text(tokenizer, token) for place, token in same.items()},
        "prefix_ids": prefix or None,
        "bos_token_id": getattr(tokenizer, "bos_token_id", None),
        "modules": None if named is None else _modules(named.to_dict("records")),
        "masks": "protected.safetensors",
    }


def write_masks(path: Path, tokens: Tokens) -> None:
    """`protected` (row, token) as 0 and 1, and `input_ids` where there are any, −1 after a row's end."""
    import torch
    from safetensors.torch import save_file

    assert tokens.rows is not None
    tensors = {"protected": torch.from_numpy(tokens.any_head().astype(np.uint8))}
    if tokens.rows.ids is not None:
        tensors["input_ids"] = torch.from_numpy(np.ascontiguousarray(tokens.rows.ids))
    save_file(tensors, path, metadata={"axes": "row, token: real tokens of each row from its first on"})


def _modules(rows: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    inputs = [row for row in rows if str(row["site"]).startswith("into ")]
    return [{"path": row["path"], "bits_lost": round(float(row["bits_lost"]), 2)} for row in inputs]


def _text(tokenizer: Any, token: int) -> str | None:
    return None if tokenizer is None else str(tokenizer.decode([token]))
