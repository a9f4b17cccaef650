"""`explain` says what runs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch

import sinkscope.attention as zoo
from sinkscope.attention.paths import chunked, sdpa, streamed

from .problems import problem


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that ran, in order."""
    seen: list[str] = []

    def spied(name: str, attention: Callable[..., Any]) -> Callable[..., Any]:
        def attend(*args: Any, **kwargs: Any) -> Any:
            seen.append(name)
            return attention(*args, **kwargs)

        return attend

    for module in (chunked, sdpa, streamed):
        name = module.__name__.rpartition(".")[2]
        monkeypatch.setattr(module, "attention", spied(name, module.attention))
    return seen


class Zero:
    """A position bias that adds nothing."""

    def rows(self, rows: slice) -> torch.Tensor:
        return torch.zeros(1, 1, rows.stop - rows.start, 300)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "tokens", "biased"), list(product(zoo.CATALOG, [8, 300], [False, True])), ids=str)
def test_explain_names_the_path_that_runs(name, tokens, biased, ran):
    spec, bias = zoo.CATALOG[name], Zero() if biased else None
    case = problem(spec, tokens=tokens, batch=1)
    told = zoo.explain(spec, case.query, biased=biased)
    attended = case.attend(bias=bias)
    kernels = set(ran) or {"reference"}
    assert kernels == {told.kernel}
    assert (attended.weights is not None) == (told.path == "reference")
    for path in ("sdpa", "streamed"):
        if told.kernel == path:
            ran.clear()
            case.attend(path=path, bias=bias)
            assert set(ran) == {path}
