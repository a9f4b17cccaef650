"""Which path an operation takes."""

from __future__ import annotations

from typing import Literal

from sinkscope.attention.paths import chunked, sdpa
from sinkscope.attention.spec import AttentionSpec
from sinkscope.errors import InputError

Path = Literal["auto", "reference", "fast", "sdpa", "chunked"]
Taken = Literal["reference", "sdpa", "chunked"]


def chosen(spec: AttentionSpec, path: Path, queries: int, keys: int, *, biased: bool = False) -> Taken:
    """The path that `path` means for this problem.

    "fast" is SDPA where that is exact, else query chunks; "auto" the same, but the reference where everything fits one
    chunk anyway. Raises `InputError` for "sdpa" where that would not be exact.
    """
    reason = sdpa.obstacle(spec, biased=biased)
    if path == "sdpa" and reason:
        raise InputError(f"no exact SDPA path: {reason}")
    if path in ("reference", "chunked"):
        return path
    if reason is None:
        return "sdpa"
    return "reference" if path == "auto" and queries <= chunked.rows_of(queries, keys) else "chunked"
