"""What tests register, and the toy package, gone when they are through."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from pathlib import Path
from unittest.mock import patch

from sinkscope import registry
from sinkscope.registry import Registry

TOY = Path(__file__).parent / "toy"


def registries() -> list[Registry]:
    """Every registry of the package."""
    from sinkscope.attention import ENTRIES
    from sinkscope.attention.pieces import PLACES
    from sinkscope.caches import POLICIES
    from sinkscope.experiments import QUESTIONS
    from sinkscope.experiments.jobs import TASKS
    from sinkscope.interventions import NAMED
    from sinkscope.measurement import OBSERVERS
    from sinkscope.quantization import SCHEMES

    return [ENTRIES, *(place.kinds for place in PLACES.values()), OBSERVERS, NAMED, POLICIES, SCHEMES, QUESTIONS, TASKS]


@contextmanager
def forgetting() -> Iterator[None]:
    """What the block registers is gone behind it."""
    known = registries()
    before = [dict(one.added) for one in known]
    try:
        yield
    finally:
        for one, added in zip(known, before, strict=True):
            one.added.clear()
            one.added.update(added)


@contextmanager
def toy_installed() -> Iterator[None]:
    """As if the toy package were installed: its modules are found, and its entry points."""
    groups = tomllib.loads((TOY / "pyproject.toml").read_text())["project"]["entry-points"]

    def points(group: str) -> list[EntryPoint]:
        return [EntryPoint(name, value, group) for name, value in groups.get(group, {}).items()]

    path = [str(TOY), *sys.path]
    with forgetting(), patch.object(sys, "path", path), patch.multiple(registry, entry_points=points, _OPENED=set()):
        try:
            yield
        finally:
            for name in [name for name in sys.modules if name.partition(".")[0] == "sinkscope_toy"]:
                del sys.modules[name]
