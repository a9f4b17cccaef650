"""Configuration that validates itself, and other libraries' errors as one line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from sinkscope.errors import InputError, unknown

UNKNOWN = {"extra_forbidden", "unexpected_keyword_argument"}
CHOICE = {"literal_error", "union_tag_invalid"}
UNTAGGED = {"union_tag_not_found", "model_attributes_type"}  # of a union told apart by a tag


def first_line(error: Exception) -> str:
    """The first line of an error's message; the error's type if it has none, and a `KeyError`'s lone key in words."""
    if isinstance(error, KeyError) and " " not in str(error):
        return f"there is no {error}"
    return next((line.strip() for line in str(error).strip().splitlines()), type(error).__name__)


class ConfigPart(BaseModel):
    """A frozen, validated piece of configuration: unknown fields, NaN and infinities are refused when it is built."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def in_one_line(error: ValidationError, kind: type, what: str = "recipe") -> InputError:
    """The first error of a validation of `kind`, a pydantic model or dataclass that messages call `what`."""
    problems = error.errors(include_url=False)
    problem = next((each for each in problems if each["type"] in UNKNOWN), problems[0])
    cause = problem.get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        return cause
    path, fields, kinds = _walk(problem["loc"], kind)
    where = ".".join(path)
    if problem["type"] in UNKNOWN:
        return unknown_field(where, fields, what)
    if problem["type"] in CHOICE:
        return _choice(f"{what} field '{where}", problem)
    if problem["type"] in UNTAGGED and (tags := [tag for tag in map(_tag, kinds) if tag]):
        name = "kind" if any("kind" in _fields(one) for one in kinds) else "name"
        expected = f"expected fields with a {name}, one of {', '.join(tags)}"
        return InputError(f"{what} field '{where}' = {problem['input']!r}: {expected}")
    if problem["type"] == "missing":
        return InputError(f"{what} field '{where}' is missing")
    return InputError(f"{what} field '{where}' = {problem['input']!r}: {problem['msg'][0].lower()}{problem['msg'][1:]}")


def unknown_field(where: str, siblings: Iterable[str], what: str = "recipe") -> InputError:
    """The error for a dotted field that does not exist, with the nearest of its siblings."""
    *parents, last = where.split(".")
    names = {name: ".".join([*parents, name]) for name in siblings}
    near = difflib.get_close_matches(last, names, n=1, cutoff=0.5)
    hint = f"did you mean '{names[near[0]]}'?" if near else f"choose from {', '.join(names.values())}"
    return InputError(f"unknown {what} field '{where}': {hint}")


def _choice(field: str, problem: Any) -> InputError:
    context = problem["ctx"]
    allowed = context.get("expected") or context["expected_tags"]
    names = [name.strip(" '") for name in allowed.replace(" or ", ",").split(",")]
    if problem["type"] == "union_tag_invalid":
        return unknown(f"{field}.{context['discriminator'].strip(chr(39))}'", context["tag"], names)
    return unknown(f"{field}'", str(problem["input"]), names)


def _walk(location: tuple[int | str, ...], kind: type) -> tuple[list[str], dict[str, FieldInfo], list[Any]]:
    """The dotted path without a union's tags, the fields valid at its last level, and the types its value may have."""
    path: list[str] = []
    kinds: list[Any] = [kind]
    fields = _fields(kind)
    for part in map(str, location):
        if "-" in part or "[" in part:  # a type inside a union, such as constrained-float
            continue
        tagged = [variant for variant in kinds if len(kinds) > 1 and _tag(variant) == part]
        if tagged:
            kinds, fields = tagged, _fields(tagged[0])
            continue
        path.append(part)
        if part in fields:
            kinds = _kinds(fields[part].annotation)
            fields = _fields(kinds[0]) if len(kinds) == 1 else fields
    return path, fields, kinds


def _fields(kind: Any) -> dict[str, FieldInfo]:
    return getattr(kind, "__pydantic_fields__", {})


def _kinds(annotation: Any) -> list[Any]:
    """The types inside unions, tuples and Annotated, without None and the dots of a tuple of any length."""
    inner = [part for part in get_args(annotation) if part is not Ellipsis and part is not type(None)]
    return [kind for part in inner for kind in _kinds(part)] if inner else [annotation]


def _tag(kind: Any) -> str | None:
    """The tag that distinguishes a part of a union: its `kind`, or an optimizer's `name`."""
    tags = [_fields(kind)[name].default for name in ("kind", "name") if name in _fields(kind)]
    return next((tag for tag in tags if isinstance(tag, str)), None)
