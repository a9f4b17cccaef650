"""Which path an operation takes."""

from __future__ import annotations

from typing import Literal, cast, get_args

from sinkscope.attention.combination import Combination
from sinkscope.attention.paths import chunked, sdpa, streamed
from sinkscope.errors import InputError, unknown

Path = Literal["auto", "reference", "fast", "fused", "sdpa", "streamed", "chunked"]
PATHS: tuple[str, ...] = get_args(Path)
Taken = Literal["reference", "fused", "sdpa", "streamed", "chunked"]


def chosen(spec: Combination, path: Path | str, queries: int, keys: int, *, biased: bool = False) -> Taken:
    """The path that `path` means for this problem, fused kernels aside (`paths/fused.py`).

    "fast" is SDPA where that is exact, else the streamed path where the normalizer knows its derivative, else query
    chunks; "auto" the same, but the reference in place of a single chunk. Raises `InputError` for "sdpa" and "streamed"
    where that would not be exact.
    """
    if path not in PATHS:
        raise unknown("path", str(path), PATHS)
    reason = sdpa.obstacle(spec, biased=biased)
    if path == "sdpa" and reason:
        raise InputError(f"no exact SDPA path: {reason}")
    if path == "streamed" and (missing := streamed.obstacle(spec, biased=biased)):
        raise InputError(f"no streamed path: {missing}")
    if path in ("reference", "chunked", "streamed"):
        return cast(Taken, path)
    if reason is None:
        return "sdpa"
    if streamed.obstacle(spec, biased=biased) is None:
        return "streamed"
    return "reference" if path == "auto" and queries <= chunked.rows_of(queries, keys) else "chunked"
