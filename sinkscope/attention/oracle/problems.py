"""Cases in numbers."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from sinkscope.attention.oracle.cases import Case, Problem
from sinkscope.attention.oracle.reference import exact


def drawn(case: Case, dtype: torch.dtype, device: torch.device, seed: int = 0) -> Problem:
    """The case in numbers, those of `dtype`, so that the reference sees what the function sees."""
    random = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random).to(dtype)

    rows = 1 if case.texts else 2  # kernels of variable length have no batch: all texts are in one row
    query, key = draw(rows, case.heads, case.queries, case.width), draw(rows, case.kv_heads, case.keys, case.width)
    value = draw(rows, case.kv_heads, case.keys, case.value_width)
    scaling = case.width**-0.5 if case.scaling is None else case.scaling
    if case.offset:  # one channel that is the same for all tokens adds the same to all scores
        size = (case.offset / scaling) ** 0.5
        query[..., 0], key[..., 0] = size, size
    else:
        query = 2 * query  # sharp enough that it matters which keys are seen
    problem = Problem(case, query.to(device), key.to(device), value.to(device), None, scaling)
    return problem if case.sink is None else replace(problem, sink=_sink(problem))


def _sink(problem: Problem) -> Tensor:
    """Logits a little below to well above what the tokens have, in the problem's dtype."""
    tokens = exact(problem).tokens
    beside = tokens.where(tokens.isfinite(), torch.nan).nanmean((0, 2))  # not of queries that see nothing
    spread = torch.linspace(-1.4, 1.4, len(beside), dtype=beside.dtype, device=beside.device)
    logits = beside - 1e4 if problem.case.sink == "closed" else beside + spread
    return logits.to(problem.query.dtype)
