"""How the pieces of a specification are validated: wrong fields fail where they are written, in one line."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields as fields_of
from typing import Any, TypeVar, dataclass_transform

from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from sinkscope.errors import InputError
from sinkscope.invalid import in_one_line

T = TypeVar("T")
STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)  # an unknown field or a NaN fails where it is written


@dataclass_transform(frozen_default=True, field_specifiers=(Field,))
def piece(cls: type[T]) -> type[T]:
    """A frozen, validated value. Raises `InputError`, one line, for fields that do not exist or do not fit."""
    return _telling(dataclass(frozen=True, config=STRICT)(cls))  # type: ignore[arg-type]


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(Field,))
def pieces(cls: type[T]) -> type[T]:
    """The same for what is made of pieces: its fields are given by name."""
    return _telling(dataclass(frozen=True, kw_only=True, config=STRICT)(cls))  # type: ignore[arg-type]


def _telling(cls: type[T]) -> type[T]:
    """`cls` with pydantic's complaints, several lines each, as one line with the field's name."""
    validated: Callable[..., None] = cls.__init__
    taken = [field for field in fields_of(cls) if field.init and not field.kw_only]  # type: ignore[arg-type]
    kinds = [field.default for field in fields_of(cls) if field.name == "kind"]  # type: ignore[arg-type]
    what = str(kinds[0]) if kinds else "attention" if not taken else cls.__name__

    @functools.wraps(validated)
    def __init__(self: T, *args: Any, **kwargs: Any) -> None:
        if len(args) > len(taken):
            raise InputError(f"{cls.__name__} takes {len(taken)} values in order, got {len(args)}")
        named = {field.name: value for field, value in zip(taken, args, strict=False)}  # so that errors name fields
        if twice := named.keys() & kwargs.keys():
            raise InputError(f"{cls.__name__} got '{min(twice)}' twice")
        try:
            validated(self, **named, **kwargs)
        except ValidationError as error:
            raise in_one_line(error, cls, what) from error

    setattr(cls, "__init__", __init__)  # noqa: B010  (a class's method, which type checkers do not let change)
    return cls
