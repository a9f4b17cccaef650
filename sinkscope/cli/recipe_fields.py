"""Names of a recipe's fields without its classes, whose import takes seconds: they are read from the sources."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

from sinkscope.invalid import unknown_field

CLASSES = {  # a field of a recipe: the files that define its classes
    "": ("training/recipe.py",),
    "data": ("data/config.py",),
    "loss": ("training/loss.py",),
    "model": ("model/config.py",),
    "optimizer": tuple(f"training/optimizers/{name}.py" for name in ("base", "elementwise", "muon", "ortho_adam")),
    "schedule": ("training/schedule.py",),
}
ALSO = {"": {"base"}}  # the recipe that a file starts from


def check_field_names(fields: Mapping[str, Any]) -> None:
    """Raises `InputError` for the first field of a recipe's file that no recipe has.

    Only names are checked, of the recipe and of its parts; which of them go together is for the recipe itself to check.
    """
    _check("", fields)
    for part in CLASSES:
        if part and isinstance(fields.get(part), Mapping):
            _check(part, fields[part])


def _check(part: str, fields: Mapping[str, Any]) -> None:
    known = {name for file in CLASSES[part] for name in _annotated(file)} | ALSO.get(part, set())
    for name in fields:
        if name not in known:
            raise unknown_field(f"{part}.{name}" if part else str(name), sorted(known))


def _annotated(file: str) -> Iterator[str]:
    """Annotated names of all public classes of a file of this package, inherited ones aside."""
    source = resources.files("sinkscope").joinpath(file).read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for line in node.body:
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                    yield line.target.id
