"""The unchanged model's pass over a context, recorded once, from which any number of evicting caches go on.

A cache evicts after a layer has attended, so nothing is missing in the pass that brings the context: its queries, keys
and values are those of the unchanged model, whatever the policy. Only scoring and evicting differ between caches, and
are done anew in each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from sinkscope.hooks import Editor, editing

LARGEST = 2**31  # bytes of queries that are kept; a longer context is read anew through each cache


@dataclass(frozen=True, eq=False)
class Attended:
    """One call of a layer's attention function, of whose output the last query's is kept. Not to be written to."""

    module: nn.Module
    implementation: str | None
    arguments: Mapping[str, Any]
    output: Tensor


@dataclass(eq=False)
class Recorder(Editor):
    """Records a model's attention calls and changes nothing. `calls` is None after more than `LARGEST` bytes."""

    modules: frozenset[nn.Module]
    calls: list[Attended] | None = field(default_factory=list)
    _open: dict[nn.Module, tuple[str | None, dict[str, Any]]] = field(default_factory=dict)
    _bytes: int = 0

    def edits(self, module: nn.Module) -> bool:
        return self.calls is not None and module in self.modules

    def given(self, module: nn.Module, implementation: str | None, arguments: dict[str, Any]) -> dict[str, Any]:
        self._open[module] = implementation, arguments
        return arguments

    def returned(self, module: nn.Module, output: Tensor) -> Tensor:
        implementation, arguments = self._open.pop(module)
        self._bytes += arguments["query"].nbytes
        if self._bytes > LARGEST:
            self.calls = None
        elif self.calls is not None:
            self.calls.append(Attended(module, implementation, arguments, output[:, -1:].clone()))
        return output


@contextmanager
def recording(model: nn.Module) -> Iterator[Recorder]:
    """Record the attention calls of a model's pass, for `EvictingCache.take_over`."""
    recorder = Recorder(frozenset(model.modules()))
    with editing(recorder):
        yield recorder
