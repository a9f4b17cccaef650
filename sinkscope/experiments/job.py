"""What a question varies and a sweep makes runs of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Job(Protocol):
    """A validated configuration that decides a run: a `Recipe`, or a task's own. Written as JSON for another process.

    A task's has a field `task`, which says its kind; a recipe has none.
    """

    def folder(self, fingerprint: Mapping[str, Any]) -> str: ...

    def model_dump(self, *, mode: str) -> dict[str, Any]: ...
