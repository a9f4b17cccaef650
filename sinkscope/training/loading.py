"""Recipes by name or from YAML, with single fields changed."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from sinkscope.data import DataConfig
from sinkscope.errors import InputError, unknown
from sinkscope.files import parse_fields, read_fields
from sinkscope.training.optimizers import OPTIMIZERS
from sinkscope.training.recipe import Recipe
from sinkscope.training.recipes import RECIPES

FIRST = ("optimizer.name=", "attention=", "attention.name=")  # put first: the other options belong to these


def load_recipe(name_or_path: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """A recipe by its name or from a YAML (or JSON) file, with fields changed by `key=value` overrides.

    A file may start from a named recipe (`base: nano`) and list only what differs; its `name` defaults to the file's.
    An override's key is dotted (`optimizer.lr=1e-3`, `attention.alpha=0.2`), its value YAML; fields of `data` need no
    prefix (`corpus=python`). Raises `InputError` in one line for an unknown recipe, field or value, with the nearest
    valid one.
    """
    fields = _fields(name_or_path)
    for override in sorted(overrides, key=lambda text: not text.startswith(FIRST)):
        key, equals, text = override.partition("=")
        if not equals or not key:
            raise InputError(f"override '{override}': expected field=value, such as optimizer.lr=1e-3")
        try:
            value = parse_fields(text)
        except yaml.YAMLError:
            value = text
        _put(fields, _dotted(key), value, override)
    return Recipe(**fields)


def _dotted(key: str) -> str:
    """The full name of a field; `corpus` is `data.corpus`, since other commands have an option of that name."""
    in_data = key not in Recipe.model_fields and key in DataConfig.model_fields
    return f"data.{key}" if in_data else key


def changed(recipe: Recipe | str | Path, changes: Mapping[str, Any]) -> Recipe:
    """A recipe (a value, name or file) with dotted fields set to values. Raises `InputError` as `load_recipe` does."""
    fields = recipe.model_dump(mode="json") if isinstance(recipe, Recipe) else _fields(recipe)
    for key in sorted(changes, key=lambda key: key != "optimizer.name"):
        _put(fields, key, copy.deepcopy(changes[key]), f"{key}={changes[key]}")
    return Recipe(**fields)


def _fields(name_or_path: str | Path) -> dict[str, Any]:
    if str(name_or_path) in RECIPES:
        return RECIPES[str(name_or_path)].model_dump(mode="json")
    path = Path(name_or_path)
    if path.suffix not in (".yaml", ".yml", ".json"):
        raise unknown("recipe", str(name_or_path), RECIPES)
    fields = read_fields(path, "recipe")
    base = fields.pop("base", None)
    if base is None:
        return {"name": path.stem, **fields}
    if base not in RECIPES:
        raise unknown(f"recipe 'base' in {path}", str(base), RECIPES)
    return _merge(RECIPES[base].model_dump(mode="json"), {"name": path.stem, **fields})


def _put(fields: dict[str, Any], key: str, value: Any, override: str) -> None:
    """Set a dotted field."""
    if key.strip() == "optimizer.name" and isinstance(fields.get("optimizer"), dict):
        fields["optimizer"] = _shared_fields(fields["optimizer"], value)
    *parents, last = key.strip().split(".")
    part = fields
    if parents == ["attention"] and isinstance(fields.get("attention"), str):  # an option of a name
        fields["attention"] = {"name": fields["attention"]}
    for parent in parents:
        if part.get(parent) is None:  # a part that is None by default
            part[parent] = {}
        inner = part[parent]
        if not isinstance(inner, dict):
            raise InputError(f"override '{override}': '{parent}' is a value and has no fields")
        part = inner
    part[last] = value


def _merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with `changes`, part by part; an attention operation is replaced as a whole."""
    merged = copy.deepcopy(base)
    for name, value in changes.items():
        both = isinstance(value, dict) and isinstance(merged.get(name), dict)
        if both and name == "optimizer":
            merged[name] = _shared_fields(merged[name], value.get("name", merged[name].get("name")))
        merged[name] = _merge(merged[name], value) if both and name != "attention" else value
    return merged


def _shared_fields(optimizer: dict[str, Any], name: Any) -> dict[str, Any]:
    """The fields that the optimizer `name` has too; its other fields take their defaults."""
    if name == optimizer.get("name") or name not in OPTIMIZERS:
        return optimizer
    return {field: value for field, value in optimizer.items() if field in OPTIMIZERS[name].model_fields}
